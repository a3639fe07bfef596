package auth

import (
	"net/netip"
	"time"
)

// The codes of refused logins.
const (
	CodeUnauthenticated = "unauthenticated"
	CodeTooManyAttempts = "too_many_attempts"
)

// Login has the credentials of one call.
type Login struct {
	Name, Password string
	Address        netip.Prefix // all addresses of the client
	Began          time.Time    // when the call arrived
	List           bool         // the call is for a list: it reads with the database role of lists
}
