// Package command is the command line of the binary: serve, migrate, trigger and the others.
// serve runs package fn. Package functions lists the commands that are not in this package, as
// they need the tables or NATS.
//
// Invariants:
//
//   - A command starts after all settings were read. All bad ones are reported at once, before
//     anything starts.
//   - The exit code is 0 when a command is done or drained, 1 when it failed, and 2 when a
//     setting or the command line is wrong: a restart does not help.
//   - SIGTERM and SIGINT end the context of a command; a second one kills the process.
package command
