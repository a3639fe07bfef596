// Package sandbox starts private Postgres and NATS servers, processes, a fake WeChat, and a proxy with network faults,
// for `make run` and the tests. Nothing that serves requests imports it.
//
//   - Each child process ends with its parent, even after a kill -9 of the parent: a watcher process reads a pipe from
//     the parent, and ends the child when the parent has died.
//   - A data directory belongs to the process that holds the lock of a file beside the data. A new process that gets the
//     lock shuts down a Postgres that still runs there: that is an orphan.
//   - The private Postgres listens on a Unix socket in a directory that only its user may enter. So the role that owns
//     the databases needs no password; all other roles need one.
//   - Postgres refuses to run as root, so root starts it as another user.
//   - A test package that runs alone starts a Postgres and builds the binaries that it needs. The test packages that one
//     RunShared runs share both. Each test has its own database.
package sandbox
