// Package cluster starts Sendonce for tests in one line, and calls it as its users do.
//
//   - Serve: all functions in the process of the test, so that the race detector checks them, without NATS.
//   - OnBothServers: runs a test on each Host: our server, in the process of the test, and the server of the functions
//     framework, as a process of its own.
//   - StartServer: all functions as one process, without NATS.
//   - New: a database and NATS; the test starts the processes itself.
//   - Open: New, all functions as one process, and a trigger.
//   - OpenTwoPhase: New, all functions as one process with TWO_PHASE_ENABLED, and the streams, but no trigger.
//   - OpenMessages: New and the function "messages" as the only process.
//   - Cluster.StartEach: each function as a process of its own, and a trigger.
//
// A Client makes HTTP calls as one caller, a Receiver receives webhooks. Everything that was started ends with the test. Only
// tests import this package; each package whose tests import it needs a TestMain with sandbox.Main.
package cluster
