package fn

import "time"

// The bounds of one connection. readTimeout and writeTimeout stand above the
// longest poll: the first, running out, would cancel the call's context.
const (
	readHeaderTimeout = 5 * time.Second
	bodyTimeout       = 10 * time.Second // from the beginning of a call
	readTimeout       = 60 * time.Second
	writeTimeout      = 60 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 16 << 10
	drainGrace        = 100 * time.Millisecond

	closeDelay         = 500 * time.Millisecond // before a connection is closed, so that the client reads the last response
	refusedBodyTimeout = time.Second            // for a body that is not read
)
