package httpserver

import (
	"math"
	"syscall"
)

// maxOpenFiles returns how many files and connections the process may have open together. The soft limit is the hard
// limit: Go raises it at the start.
func maxOpenFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt // unknown
	}
	return int(min(limit.Cur, math.MaxInt))
}
