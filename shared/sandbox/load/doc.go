// Package load makes calls for fault tests and benchmarks. A Generator repeats calls and counts
// their outcomes. A Ledger stores the results of calls that succeeded, and compares them with the
// database and with the messages that receivers got.
package load
