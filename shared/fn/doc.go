// Package fn is the server around the functions. The server authenticates and limits calls, decodes
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
// The framework's CloudEvent receiver is not used: if a request is cancelled before it begins, the
// handlers of later requests can hang. Events are decoded with the HTTP binding of the CloudEvents
// SDK.
//
// A function must not panic with http.ErrAbortHandler to abort a response: the framework recovers
// this panic like any other, and ends the response as if the response were complete.
//
// Each route is a full path in one ServeMux, so a function responds in the same way whether it
// is served alone or with others. ServeMux never redirects here, since a redirect loses the body
// of a POST. HEAD does not call a GET route, since claiming by GET changes state.
//
// Requests are decoded by package decode. The comment of that package says why encoding/json is not used.
//
// # Invariants
//
//   - A 2xx response of the API means that the function returned no error, or that a stream has
//     begun. A call whose client has left never gets net/http's default of 200.
//   - A caller never sees the text of an error that is not a *task.Error. The caller gets 500 with
//     the request id, or 503 if a dependency timed out or is unreachable.
//   - Each call has one log line, with the error. Two kinds of calls have only one line a minute for
//     each function and error code: failed calls without a known caller, and events that a busy
//     function refuses.
//   - No raw path, query, body or password is logged: they contain phone numbers and secrets.
//     The pattern of the route is logged instead of the path.
//   - Once a process has read that a caller was revoked or changed, the streams and sockets of the
//     process send that caller nothing more. The polls of the process claim nothing for a caller that
//     was revoked or lost its role. revocation.go says how soon a process reads a change.
//   - No body of a known caller is read before there is memory for it (see memoryBudget). One
//     caller uses at most its share of that memory, by default a quarter.
//   - No body is read before the credentials or the session were checked, except a form of at
//     most 8 KiB of a visitor who is not logged in. A body must arrive within 10 s of the start
//     of the call; waiting for memory does not count. If the body of a refused call does not arrive
//     within 1 s, the connection is closed.
//   - During the drain, Serve accepts no connection. Serve returns when every call over an open
//     connection has its response and every WebSocket is closed, or after DrainTimeout.
//   - A frame of a WebSocket is a call: it is authenticated, limited, logged and counted, and
//     has its own response.
//   - At most 8 frames of one caller are handled at once in a process. The caller's reads of events
//     use at most half of the processors (see callerSemaphores). Further frames and reads wait.
//   - All bad settings are reported at once. A misspelt setting stops the start.
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
