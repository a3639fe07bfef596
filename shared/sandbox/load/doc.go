// Package load makes calls for fault tests and benchmarks, and keeps a ledger of
// what was answered, which is compared with the database and with what receivers
// got. A Generator decides when calls are made and counts their outcomes; the
// calls themselves belong to its user. The outcome of one that succeeded is entered
// in a Ledger.
package load
