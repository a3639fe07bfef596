package auth

import (
	"net/netip"
	"time"
)

// The codes of errors that refuse a login. A login that cannot be checked fails with task.CodeServerBusy.
const (
	CodeUnauthenticated = "unauthenticated"
	CodeTooManyAttempts = "too_many_attempts"
)

// Login has the credentials of one call.
type Login struct {
	Name, Password string
	Address        netip.Prefix // that the limits count as one client: an IPv4 address, or the /64 of an IPv6 address
	Began          time.Time    // when the call arrived
	ForList        bool         // look the caller up with the connections for lists, which the call uses anyway
}
