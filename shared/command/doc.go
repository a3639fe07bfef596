// Package command is the command line of the binary: serve, migrate, trigger and the others.
// serve is fn.ListenAndServe. functions.Commands has the commands that need the tables or NATS.
//
// Invariants:
//
//   - Nothing starts before all settings that the functions share were checked, and for serve
//     those of its functions. All bad ones are reported at once. Then a command checks the
//     settings of its own.
//   - The exit code is 0 when a command is done or serve has drained, 1 when the command failed,
//     and 2 when a setting is wrong or there is no such command: a restart does not help.
//   - The first SIGTERM or SIGINT cancels the context of a command; a second one kills the process.
package command
