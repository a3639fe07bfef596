// Package load makes calls for fault tests and benchmarks, and keeps a ledger of
// their results, which is compared with the database and with what receivers
// got. A Generator decides when calls are made and counts their outcomes; the
// calls themselves belong to its user. The result of one that succeeded is recorded
// in a Ledger.
package load
