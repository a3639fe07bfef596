// Package quota estimates how many messages or tasks each caller has waiting: a recent count of
// the database plus what this process has accepted since. A caller can exceed its limit by what
// other processes accept between two counts.
package quota
