// Package fn is the server around the functions. The server authenticates and limits calls, decodes
// requests, writes responses, log lines and metrics, and serves probes. On SIGTERM it drains: it
// finishes the calls in progress. A function declares its routes and the roles that may call them.
// request.page handles the pages for browsers. Every call of the API takes these steps (see request.run):
//
//	route -> request id -> origin check -> authentication -> role check -> slot -> memory ->
//	body, and then the caller is checked again -> decode -> handler -> response -> one log line
//
// Limits "of one caller" are limits of its account: an admin with queues and the callers that this admin
// has created count as one caller (callers.Caller.QuotaName).
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
// The framework's CloudEvent receiver is not used: if a request is cancelled before its handler starts,
// the handlers of later requests can hang. Events are decoded with the HTTP binding of the CloudEvents
// SDK.
//
// A function must not panic with http.ErrAbortHandler to abort a response: the framework recovers
// this panic like any other, and ends the response as if the response were complete.
//
// Each route has a full path in one ServeMux, so a function responds in the same way whether it
// is served alone or with others. mux.find keeps ServeMux from redirecting, since a redirect loses the
// body of a POST. HEAD gets 405 and does not call a GET route, since some GET routes change state.
//
// Requests are decoded by package decode. The comment of that package says why encoding/json is not used.
//
// # Invariants
//
//   - A 2xx response of the API means that the function returned no error, or that a stream has
//     begun. If a client leaves before the response, the status is 499, not net/http's default of 200.
//   - A caller never sees the text of an error that is not a *task.Error. The caller gets 500 with
//     the request id, or 503 if the call timed out or a dependency is unreachable.
//   - Each call has one log line, with the error if it failed. Two kinds of calls share one line a
//     minute for each function and error code: failed calls without a known caller, and events that
//     are refused with 503. Probes, scrapes and preflights have no line, unless a scrape is refused.
//   - No raw path, query, body or password is logged: they contain phone numbers and secrets.
//     The pattern of the route is logged instead of the path.
//   - Once a process has read that a caller was revoked or changed, the streams and sockets of the
//     process send that caller no more events, and end. The polls of the process claim nothing for a
//     caller that was revoked or lost its role. revocation.go says how soon a process reads a change.
//   - No body of a known caller is read before memory is reserved for it (see memoryBudget). One
//     caller reserves at most its share of the memory, by default a quarter (for the trigger, half).
//   - No body is read before the credentials or the session were checked, except the form of a
//     visitor who is not logged in: at most 8 KiB. A body must arrive within 10 s of the start
//     of the call; waiting for memory does not count. If the body of a refused call does not arrive
//     within 1 s, the connection is closed.
//   - During the drain, Serve accepts no connection. Serve returns when every call over an open
//     connection has its response and every WebSocket is closed, or after DrainTimeout.
//   - A frame of a WebSocket is a call: it is authenticated, limited, logged and counted, and
//     has its own response.
//   - At most 8 frames of one caller are handled at once in a process. The caller's reads of events
//     use at most half of the processors (see callerSemaphores). Further frames and reads wait.
//   - All bad settings are reported at once. A process with a misspelt setting does not start.
//
// # Files
//
//	calls:             handler, run, mux, function, route, request, new_request, request_body,
//	                   request_slot, request_end, response, errors, call, batch, wire
//	callers:           authenticate, stream_token, revocation, role, source_address
//	limits:            call_limiter, caller_semaphores, memory_budget, body_reader
//	browsers:          page, visit, visit_memory, session, cors, cross_origin
//	CloudEvents:       event
//	streams and polls: stream, event_writer, socket, with_socket, socket_limits, upgrade, waiters
//	the process:       env, new_env, wake, alert_check, snapshot, settings, serve, register,
//	                   durability, probes, health, metrics, standard_log, version
package fn
