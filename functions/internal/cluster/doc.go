// Package cluster starts Sendonce for tests in one line, and calls it as its users do.
//
//   - Serve: all functions in the test's own process, so that the race detector
//     checks them, on a fresh database. Host.At does the same on a server of your
//     choice, OnBothServers on both.
//   - StartServer: all functions as one process, without NATS.
//   - New: a database and NATS; the test starts the processes itself.
//   - Open, OpenTwoPhase: New, all functions as one process, and (Open) a trigger.
//   - Cluster.StartEach: each function as a process of its own, and a trigger.
//
// A Client makes HTTP calls as one caller, a Receiver is a server that receives
// webhooks. Everything ends with the test. Only tests import this package; each
// needs a TestMain with sandbox.Main.
package cluster
