// Package load makes calls for fault tests and benchmarks, and compares their results with the
// database and with what receivers got. A Generator repeats the calls that a test gives it and
// counts their outcomes. A Ledger stores the results of calls that succeeded, for the comparison.
package load
