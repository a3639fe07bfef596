package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

const (
	maxLog           = 64 << 20 // bytes; a longer log file is copied to a file with the suffix .1 and emptied
	logCheckInterval = time.Second
)

// openLog opens a log file in dir for appending.
func openLog(dir, name string) (*os.File, error) {
	return os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// limitLogs limits each log file in dir, and each copy with the suffix .1, to about maxLog bytes, until ctx is
// done.
func limitLogs(ctx context.Context, dir string, out io.Writer) {
	for failed := map[string]bool{}; pause(ctx, logCheckInterval); {
		names, err := filepath.Glob(filepath.Join(dir, "*.log"))
		if err != nil {
			return // the name of dir makes the pattern invalid
		}
		for _, name := range names {
			if err := limitLog(name, maxLog); err != nil && !failed[name] {
				failed[name] = true
				fmt.Fprintf(out, "%s could not be limited: %v\n", name, err)
			}
		}
	}
}

// limitLog copies a log file to name.1 and empties it, if it is longer than limit. Processes that append to the
// log file continue at its new end. Lines that are written between the copy and the truncation are lost.
func limitLog(name string, limit int64) (err error) {
	log, err := os.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer log.Close()
	if info, err := log.Stat(); err != nil || info.Size() <= limit {
		return err
	}
	copied, err := os.OpenFile(name+".1", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(copied, log)
	if err = errors.Join(err, copied.Close()); err != nil {
		// Even if the disk is full, the log is emptied below.
		err = errors.Join(err, os.Remove(name+".1"))
	}
	return errors.Join(err, log.Truncate(0))
}
