// Package e2e tests what needs several functions, processes or NATS: every response of
// the contract, access, wake-ups, outages, kills and failovers. Tests of one function are
// beside it. functions/internal/cluster starts every scenario, shared/sandbox/load makes
// the calls during faults and keeps the ledger.
//
// make test runs the short form of each test. make faults and make cluster set
// SENDONCE_FAULT_SECONDS and SENDONCE_CLUSTER, which make outages last longer and start
// the tests that are skipped otherwise.
package e2e
