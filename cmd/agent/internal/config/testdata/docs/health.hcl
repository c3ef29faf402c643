health { workers = 256 }
