// Package load makes calls for fault tests and benchmarks. A Generator makes calls again and again,
// and counts their outcomes. A Ledger stores the results of successful calls, and compares them with
// the database and with the messages that receivers got.
package load
