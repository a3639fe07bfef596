package fn

import "time"

// The limits of one connection. readTimeout and writeTimeout are longer than the longest poll: at
// the end of readTimeout net/http would cancel the context of the call.
const (
	readHeaderTimeout = 5 * time.Second
	bodyTimeout       = 10 * time.Second // from the beginning of a call
	readTimeout       = 60 * time.Second
	writeTimeout      = 60 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 16 << 10
	drainGrace        = 100 * time.Millisecond // for calls that are on their way when the drain begins

	closeDelay         = 500 * time.Millisecond // before a connection is closed, so that the client reads the last response
	refusedBodyTimeout = time.Second            // for a body that is not read
)
