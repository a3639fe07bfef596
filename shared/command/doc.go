// Package command is the command line of the binary: serve, migrate, trigger and the others.
// serve is fn.ListenAndServe. functions.Commands has the commands that need the tables or NATS.
//
// Invariants:
//
//   - No command starts before the shared settings were checked, and serve not before those of its
//     functions were. All bad settings of this check are reported at once. A command checks its own
//     settings afterwards. Only config, version and help need no valid settings.
//   - The exit code is 0 when a command is done or serve has drained, and 1 when the command failed.
//     It is 2 when a setting is wrong or there is no such command: a restart does not help.
//   - The first SIGTERM or SIGINT cancels the context of a command; a second one kills the process.
package command
