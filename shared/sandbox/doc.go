// Package sandbox has a private Postgres, NATS, processes and a faulty network for
// `make run` and the tests. Nothing that serves requests
// imports it.
//
//   - Everything it starts ends with the process that started it, kill -9
//     included: each child has a guard that waits on a pipe from us.
//   - A data directory has one owner, which locks a file beside the data. A Postgres
//     found there without a locked file is an orphan and is shut down before a new
//     one starts.
//   - The private server listens on a Unix socket in a directory that only its
//     user may enter; that permission is its whole authentication.
//   - Postgres refuses to run as root, so root starts it as another user.
//   - A test package that runs alone starts its own server and builds the binaries that it
//     starts; those that RunShared runs share them. Each test has a database of its own.
package sandbox
