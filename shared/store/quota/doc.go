// Package quota estimates how many messages or tasks each caller has waiting: a recent count of
// the database plus the items that this process has accepted since. A caller can exceed its limit by
// the items that other processes accept between two counts. In a process, counts of one caller (or counts of
// all callers together, see NewJoint) take at most a twentieth of the time. The id of a caller is that of its
// account (callers.Caller.Account), since all callers of an account share one quota.
package quota
