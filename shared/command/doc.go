// Package command is the command line of the one binary: serve, migrate, trigger and the
// others. Package fn is what serve runs; package functions lists the commands that need
// more than this package, such as the tables or NATS.
//
// Invariants:
//
//   - A command starts after all settings were read. All bad ones are reported at once, and
//     nothing has started then.
//   - The exit code is 0 when a command is done or drained, 1 when it failed, and 2 when a
//     setting or the command itself is wrong: a restart does not cure that.
//   - SIGTERM and SIGINT end the context of a command; a second one kills the process.
package command
