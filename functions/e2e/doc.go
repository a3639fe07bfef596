// Package e2e has the tests that need several functions, processes or NATS: every response of the API, access,
// wake-ups, outages, kills and failovers. A test of one function is in the package of that function.
// functions/internal/cluster starts the processes; shared/sandbox/load makes the calls during faults and checks the
// results.
//
// make test runs short outages. make faults (SENDONCE_FAULT_SECONDS) runs longer outages, and make cluster
// (SENDONCE_CLUSTER) uses three NATS servers. Both run tests that make test skips.
package e2e
