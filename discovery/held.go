package discovery

import (
	"fmt"
	"time"
)

// HeldError is the failure of a source whose mechanism says that all or most of
// the endpoints are gone, and that has reason not to believe it yet. The last
// set stays in force meanwhile.
type HeldError struct {
	// Listed is how many endpoints the mechanism lists now, of Known before.
	Listed, Known int
	// Until is when it is believed if it still says so.
	Until time.Time
	// Reason is why it is not believed.
	Reason error
}

// Error says what is held, why and for how long at most.
func (e *HeldError) Error() string {
	return fmt.Sprintf("only %d of %d endpoints are listed, which is not believed before %s: %v",
		e.Listed, e.Known, e.Until.UTC().Format(time.RFC3339), e.Reason)
}

// Unwrap returns Reason.
func (e *HeldError) Unwrap() error { return e.Reason }
