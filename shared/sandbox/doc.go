// Package sandbox starts private Postgres and NATS servers, processes, a fake WeChat, and a proxy with network faults,
// for `make run` and the tests. Nothing that serves requests imports it.
//
//   - Each child process ends with its parent, even after a kill -9 of the parent: a watcher of the child reads a pipe
//     from the parent.
//   - A data directory belongs to the process that has locked a file beside the data. If the file is not locked, a
//     Postgres that runs there is an orphan, and is shut down before a new one starts.
//   - The private Postgres listens on a Unix socket in a directory that only its user may enter. So the role that owns
//     the databases needs no password; all other roles need one.
//   - Postgres refuses to run as root, so root starts it as another user.
//   - A test package that runs alone starts a server and builds the binaries that it needs. The test packages of one
//     RunShared share both. Each test has its own database.
package sandbox
