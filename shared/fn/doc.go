// Package fn is what every function has around it: credentials, limits, deadlines, responses,
// logging, probes and an orderly end. A function says which routes it has and who may call them;
// everything else happens here, once, in one order (see mux.go):
//
//	request id -> route -> origin -> authentication -> role -> share -> memory -> body ->
//	slot -> decode -> the function -> response -> one log line
//
// # Decisions
//
// The binary serves with a server of its own (Serve), because the framework's
// has no limits for connections and no drain, and cannot take a passed socket.
// Register gives the same handler to the functions framework for hosts that need it. What Serve does beyond net/http's defaults is done in the
// handler wherever that is possible, so that it holds on both: limits of bodies
// and responses, the bound of calls, and the drain (see endOnSignal). docs/platform.md
// lists what remains. The contract tests run on both servers. Of the framework, the binary
// links its registry alone: 60 bytes, and no time at the start.
//
// functions.Typed of the framework is never used: it decodes every request
// into one shared argument, so a field that a request leaves out keeps the
// value of another caller's, and parallel calls mix. For text messages that
// means sending to the wrong number.
//
// The framework's CloudEvent receiver is never used either: after a request
// that was cancelled before it began, handlers can hang, healthy ones after it
// included. Events are decoded by the binding of the CloudEvents SDK alone.
//
// The framework recovers http.ErrAbortHandler like any panic and ends the response
// as if it were whole, so no function may use it to break one off.
//
// Each function has full paths in a ServeMux, so that it responds alike alone
// and among all. The mux's courtesies are off: no redirects (they lose the
// body of a POST) and no HEAD on GET routes (claiming by GET changes state).
//
// Decode is our own because encoding/json stops at the first bad field, takes
// names in any case, lets a repeated field win silently and stores U+FFFD for
// text that it cannot read. Well-formedness is still encoding/json's to judge,
// so nothing gets in that it would refuse.
//
// # Invariants
//
//   - A response with a 2xx status comes from a function that returned no error,
//     or is a stream that has begun; a call whose client left never gets
//     200 by default.
//   - What a caller sees of an error that is not a *task.Error is its request
//     id. The log has the whole of it, on exactly one line per call (but on one a minute for
//     the events that one function refuses because it is busy).
//   - No raw path, query, body or password is logged: they hold phone numbers
//     and secrets. The route's pattern stands for the path.
//   - What a caller has open does not outlive it: a stream or socket sends nothing,
//     and a poll claims nothing, for a caller that was revoked or changed (revocation.go).
//   - No body is read before there is memory for it (see memoryBudget). One caller holds a
//     quarter of that memory at most.
//   - No body is read before the credentials were checked. The 10 s that it
//     may take begin with the call; that of a refused call is given 1 s, after which
//     its connection is closed.
//   - Once draining, Serve takes no connection and returns when every call that
//     came over one that was open has its response, and every WebSocket is closed.
//   - A frame of a WebSocket is a call: authenticated, bounded, logged and counted
//     as one, with a response of its own.
//   - However many streams and sockets a caller has, few of its frames, and of its reads
//     of events, are worked on at once (see callerSemaphores). The others wait.
//   - All bad settings are reported at once, and a misspelt one stops the start.
//
// # Files
//
// Each line is a layer. Its files use those of the same and of earlier lines:
//
//	role, errors, timeouts, source_address, waiters, cross_origin, version
//	limiters and budgets
//	env, alert_check
//	call, caller_semaphores, wire
//	route, batch
//	request, response, authenticate, revocation, upgrade
//	function, event, stream, socket
//	mux, health, metrics
//	serve, probes, durability, settings, register
package fn
