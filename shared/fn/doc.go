// Package fn is the server around the functions: it authenticates calls, limits them, decodes
// requests, writes responses, log lines and metrics, serves probes, and drains at the end. A
// function declares its routes and the roles that may call them. Pages for browsers are handled by
// request.page. Every call of the API takes the same steps (request.run):
//
//	route -> request id -> origin check -> authentication -> role check -> slot -> memory ->
//	body -> caller checked again -> decode -> handler -> response -> one log line
//
// # Decisions
//
// The binary has a server of its own (Serve), because the server of the functions framework does
// not limit connections, does not drain, and does not support socket activation. Register serves the
// same handler with the framework, for hosts that need it. The limits of bodies, responses and
// calls are enforced in the handler, so they apply to both servers. docs/platform.md lists the
// differences. The contract tests run on both servers.
//
// functions.Typed of the framework is not used: it decodes every request into one shared
// argument. Parallel calls would mix their values, and an SMS could go to the wrong number.
//
// The framework's CloudEvent receiver is not used: after a request that was cancelled before
// it began, the handlers of later requests can hang. Events are decoded with the HTTP binding of
// the CloudEvents SDK.
//
// A function must not panic with http.ErrAbortHandler to abort a response: the framework recovers
// it like any panic, and ends the response as if it were complete.
//
// Each route is a full path in one ServeMux, so a function responds in the same way whether it
// is served alone or with others. ServeMux never redirects here, since a redirect loses the body
// of a POST. HEAD does not call a GET route, since claiming by GET changes state.
//
// Requests are decoded by package decode; its comment says why not by encoding/json.
//
// # Invariants
//
//   - A 2xx response of the API means that the function returned no error, or that a stream has
//     begun. A call whose client has left never gets net/http's default of 200.
//   - A caller never sees the text of an error that is not a *task.Error. It gets 500 with its
//     request id, or 503 if a dependency timed out or is unreachable.
//   - Each call has one log line, with the error. Failed calls without a known caller, and
//     events that a function refuses because it is busy, have one line a minute for each
//     function and error code.
//   - No raw path, query, body or password is logged: they contain phone numbers and secrets.
//     The pattern of the route is logged instead of the path.
//   - Once a process has read that a caller was revoked or changed, its streams and sockets
//     send that caller nothing more, and its polls claim nothing for a caller that was revoked
//     or lost its role. revocation.go says how soon that is.
//   - No body of a known caller is read before there is memory for it (see memoryBudget). One
//     caller uses at most its share of that memory, by default a quarter.
//   - No body is read before the credentials or the session were checked, except a form of at
//     most 8 KiB of a visitor who is not logged in. A body must arrive within 10 s of the start
//     of the call; waiting for memory does not count. The body of a refused call must arrive
//     within 1 s, or its connection is closed.
//   - Once it drains, Serve accepts no connection. It returns when every call over an open
//     connection has its response and every WebSocket is closed, or after DrainTimeout.
//   - A frame of a WebSocket is a call: it is authenticated, limited, logged and counted, and
//     has its own response.
//   - At most 8 frames of one caller are handled at once in a process, and its reads of events
//     use at most half of the processors (see callerSemaphores). The others wait.
//   - All bad settings are reported at once, and a misspelt one stops the start.
//
// # Files
//
//	calls:             handler, run, mux, function, route, request, new_request, request_body,
//	                   request_slot, request_end, response, errors, call, batch, wire
//	callers:           authenticate, stream_token, revocation, role, source_address
//	limits:            call_limiter, caller_semaphores, memory_budget, body_reader
//	browsers:          page, visit, session, cors, cross_origin
//	CloudEvents:       event
//	streams and polls: stream, event_writer, socket, with_socket, socket_limits, upgrade, waiters
//	the process:       env, new_env, wake, alert_check, snapshot, settings, serve, register,
//	                   durability, probes, health, metrics, standard_log, version
package fn
