package main

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// readAnew has the file be read from its disk by who uses it next. What a linker
// has just written lies in memory in single pages, and starts slower from there
// than any binary that was deployed.
func readAnew(path string) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Sync(); err != nil { // only what is on the disk is let go
		return err
	}
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}
