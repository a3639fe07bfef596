// Package load makes calls for fault tests and benchmarks. A Generator makes calls again and again,
// and counts their outcomes. A Ledger stores the results of successful calls and the messages
// that receivers got, and compares them with each other and with the database.
package load
