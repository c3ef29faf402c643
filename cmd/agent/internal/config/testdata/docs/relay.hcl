relay { event_loops = 2 }
