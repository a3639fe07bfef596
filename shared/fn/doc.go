// Package fn is the server around the functions: it authenticates calls, limits them, decodes
// requests, writes responses, log lines and metrics, serves probes, and drains at the end. A
// function declares its routes and the roles that may call them. Every call takes the same
// steps (see mux.go):
//
//	request id -> route -> origin -> authentication -> role -> slot -> memory -> body ->
//	caller again -> decode -> handler -> response -> one log line
//
// # Decisions
//
// The binary has a server of its own (Serve): the framework's server does not limit
// connections, does not drain, and cannot use a listener that a parent process passes.
// Register serves the same handler with the functions framework, for hosts that need it. What
// Serve adds to net/http is done in the handler where that is possible, so that it applies to
// both servers: limits of bodies and responses, limits of calls, and the drain (see
// endOnSignal). docs/platform.md lists what applies to Serve only. The contract tests run on
// both servers. The binary links only the registry of the framework: 60 bytes, and no time at
// the start.
//
// functions.Typed of the framework is not used: it decodes every request into one shared
// argument. A field that a request omits would keep the value of another caller, and parallel
// calls would mix their values: a text message would go to the wrong number.
//
// The framework's CloudEvent receiver is not used: after a request that was cancelled before
// it began, handlers can hang, also those of later valid requests. Events are decoded with the
// HTTP binding of the CloudEvents SDK.
//
// The framework recovers http.ErrAbortHandler like any panic and ends the response
// as if it were complete, so a function must not use it to abort a response.
//
// Each route is a full path in one ServeMux, so that a function responds alike when it is
// served alone and with the others. ServeMux's redirects are avoided, because they lose the
// body of a POST, and so is HEAD on GET routes, because claiming by GET changes state.
//
// Package decode replaces encoding/json, which stops at the first bad field, accepts names in
// any case and repeated fields, and stores U+FFFD for invalid text. encoding/json still checks
// that the JSON is well formed, so decode accepts nothing that encoding/json refuses.
//
// # Invariants
//
//   - A response with a 2xx status comes from a function that returned no error, or is a
//     stream that has begun. A call whose client has left never gets net/http's default of 200.
//   - Of an error that is not a *task.Error a caller sees only its request id. The log has
//     the whole error, on exactly one line per call. Only failed calls without a known caller,
//     and events that a function refuses because it is busy, share one line a minute.
//   - No raw path, query, body or password is logged: they contain phone numbers and secrets.
//     The pattern of the route is logged instead of the path.
//   - A stream or socket sends nothing to a caller that was revoked or changed, and a poll
//     claims nothing for a caller that was revoked or lost its role (revocation.go).
//   - No body of a known caller is read before there is memory for it (see memoryBudget). One
//     caller uses at most its share of that memory, by default a quarter.
//   - No body is read before the credentials were checked. It must arrive within 10 s of the
//     start of the call. The body of a refused call must arrive within 1 s, or its connection
//     is closed.
//   - Once it drains, Serve accepts no connection. It returns when every call over an open
//     connection has its response and every WebSocket is closed, or after DrainTimeout.
//   - A frame of a WebSocket is a call: it is authenticated, limited, logged and counted, and
//     has its own response.
//   - However many streams and sockets a caller has, few of its frames, and of its reads
//     of events, are processed at once (see callerSemaphores). The others wait.
//   - All bad settings are reported at once, and a misspelt one stops the start.
//
// # Files
//
//	calls:         mux, request, response, errors, call, route, batch, wire, function
//	callers:       authenticate, stream_token, revocation, role, source_address
//	limits:        call_limiter, caller_semaphores, connection_limiter, header_limit,
//	               memory_budget, body_reader, timeouts
//	browsers:      page, cors, cross_origin
//	events:        event, stream, socket, socket_limits, upgrade, waiters
//	the process:   env, settings, serve, register, durability, probes, health, metrics,
//	               snapshot, alert_check, standard_log, version
package fn
