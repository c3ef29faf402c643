package discovery

// A Refresher is a Source that can be asked to look anew before it is time, as
// when all endpoints that it has given fail. Refresh may be called from anywhere
// and does not block. The source bounds how often it heeds it.
type Refresher interface {
	Source
	Refresh()
}
