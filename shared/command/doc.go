// Package command is the command line of the binary: serve, migrate, trigger and the others.
// serve is fn.ListenAndServe. functions.Commands has the commands that need the tables or NATS.
//
// Invariants:
//
//   - A command starts only if the shared settings are valid, and serve only if the settings of its
//     functions are valid too. This check reports all bad settings at once. A command checks its
//     own settings afterwards. Only config, version and help need no valid settings.
//   - The exit code is 0 when a command is done or serve has drained, and 1 when the command failed.
//     It is 2, and a restart does not help, when a setting is wrong, there is no such command, or
//     serve, config or version got an argument.
//   - The first SIGTERM or SIGINT cancels the context of a command; a second one kills the process.
package command
