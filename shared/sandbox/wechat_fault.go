package sandbox

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// WeChatFault makes selected calls to a fake WeChat fail or wait:
//
//	{Errcode: 45011, Times: 3}               the next three sends fail with errcode 45011
//	{Drop: true}                             nothing is delivered, every connection is reset
//	{Drop: true, DeliverFirst: true}         everything is delivered, every connection is reset
//	{Status: 502, DeliverFirst: true}        delivered, but the response is a gateway error
//	{Body: "<html>", DeliverFirst: true}     delivered, but the response is not JSON
//	{Delay: time.Hour}                       delivered and responded to after an hour, or at ClearFaults
//	{Delay: time.Hour, DeliverFirst: true}   delivered at once, responded to after an hour, or at ClearFaults
type WeChatFault struct {
	TokenCalls bool   // calls for an access token; false = calls to send a message
	OpenID     string // only messages to this user; "" = all
	Times      int    // to how many calls the fault applies; 0 = to all until ClearFaults

	Delay        time.Duration // before the response; ClearFaults and Stop end it early
	DeliverFirst bool          // deliver before Delay; false = deliver after Delay, and only if none of the fields below is set
	Errcode      int           // of the response, unless Status, Body or Drop is set
	Status       int           // HTTP status of the response; 0 = 200
	Body         string        // of the response
	Drop         bool          // reset the connection without a response
}

// replacesResponse reports whether f replaces WeChat's own response.
func (f WeChatFault) replacesResponse() bool {
	return f.Drop || f.Status != 0 || f.Body != "" || f.Errcode != 0
}

// String describes the fault for the ledger; "" = no fault.
func (f WeChatFault) String() string {
	var parts []string
	if f.Delay > 0 {
		parts = append(parts, fmt.Sprintf("delayed by %s", f.Delay))
	}
	switch {
	case f.Drop:
		parts = append(parts, "no response")
	case f.Status != 0 || f.Body != "":
		parts = append(parts, fmt.Sprintf("responded %d %q", cmp.Or(f.Status, http.StatusOK), f.Body))
	case f.Errcode != 0:
		parts = append(parts, fmt.Sprintf("responded errcode %d", f.Errcode))
	}
	return strings.Join(parts, ", ")
}
