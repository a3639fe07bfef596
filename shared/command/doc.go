// Package command is the command line of the binary: serve, migrate, trigger and the others.
// serve is fn.ListenAndServe. functions.Commands has the commands that need the tables or NATS.
//
// Invariants:
//
//   - Nothing starts before the shared settings were checked, and for serve those of its
//     functions. All bad settings are reported at once. Then a command checks its own settings.
//   - The exit code is 0 when a command is done or serve has drained, and 1 when the command failed.
//     It is 2 when a setting is wrong or there is no such command: a restart does not help.
//   - The first SIGTERM or SIGINT cancels the context of a command; a second one kills the process.
package command
