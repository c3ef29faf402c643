// Package page is the live page of the admin interface: one HTML document with its
// style and script in it, and the stream of server-sent events that feeds it. It
// knows names of rows and their JSON, and nothing of what they mean; page.js does.
//
// # Usage
//
//	p := page.New(page.Config{Rows: rows, Log: log})
//	mux.Handle("GET /{$}", p)
//	mux.HandleFunc("GET /events", p.Events)
//
// A row is what the page shows of one thing; a stream sends those that differ from
// what it has sent before, and the names of those that are gone. Names and texts in
// rows may be anybody's: the script puts them into text nodes and attributes only.
//
// # Concurrency
//
// A stream is served by its request's goroutine; rows are built by one of them at a
// time. Nothing runs while nobody looks. A Log takes a mutex to keep a line.
//
// # Limitations
//
// At most 8 streams are open at once. A stream has rows built once a second at most,
// takes no more than a twentieth of a CPU for that and 256 KiB a second in the mean:
// where there is much to say it says it less often. Who is slow to read misses what
// was between. Graphs and the timeline begin when the page is opened; the log goes
// back 200 lines. A Log keeps 256 KiB, and 4 KiB of a line.
package page
