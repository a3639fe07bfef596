package httpserver

import (
	"math"
	"syscall"
)

// maxOpenFiles returns how many files and connections the process may have open. At start, Go raises the soft limit to the hard limit.
func maxOpenFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt // unknown
	}
	return int(min(limit.Cur, math.MaxInt))
}
