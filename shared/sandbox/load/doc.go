// Package load makes calls for fault tests and benchmarks, and compares their results with the
// database and with what receivers got. A Generator decides when calls are made and counts their
// outcomes; its user supplies the calls. A Ledger stores the results of calls that succeeded.
package load
