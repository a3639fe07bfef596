// Package sandbox starts private Postgres and NATS servers, processes, a fake WeChat, and a proxy with network faults,
// for `make run`, the benchmarks and the tests. The binary sendonce does not contain it.
//
//   - Each child process ends with its parent, even after a kill -9 of the parent: a watcher process reads a pipe from
//     the parent, and ends the child within about five seconds after the parent has died.
//   - A data directory belongs to the process that has locked a file beside the data. If a Postgres still runs there
//     when a new process gets the lock, this Postgres is an orphan, and the new process shuts it down.
//   - The private Postgres listens only on a Unix socket, in a directory that only its user may enter. So the role that
//     owns the databases needs no password; all other roles need one.
//   - Postgres refuses to run as root, so root starts it as another user.
//   - A test package that runs alone starts a Postgres and builds the binaries that it needs. The test packages that
//     one RunShared runs share one Postgres and the binaries. Each call of NewDatabase creates a database.
//   - If DATABASE_URL is set, its server is used. Only NewPair starts a Postgres even then.
package sandbox
