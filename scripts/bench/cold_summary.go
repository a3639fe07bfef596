package main

import (
	"fmt"
	"strings"
	"time"
)

// What a function may take to come up, on two cores, and what it may keep.
const (
	coldLimit     = 15 * time.Millisecond // the median
	residentLimit = 25_000_000            // bytes
)

// coldSummary is how functions started.
type coldSummary struct {
	summary
	runs   int
	binary int64 // size in bytes
	rows   []coldRow
}

// coldRow is one function.
type coldRow struct {
	function string
	took     []time.Duration // of each run, ascending
	resident int64           // the most of all runs, in bytes
}

func (r coldRow) median() time.Duration {
	half := len(r.took) / 2
	if len(r.took)%2 == 0 {
		return (r.took[half-1] + r.took[half]) / 2
	}
	return r.took[half]
}

func (s *coldSummary) add(r coldRow) {
	s.rows = append(s.rows, r)
	fmt.Fprintf(s.progress, "%-10s %5.1f ms %5.1f MB\n", r.function, milliseconds(r.median()), megabytes(r.resident))
}

// wrong names the functions that are above a limit.
func (s *coldSummary) wrong() error {
	var above []string
	for _, r := range s.rows {
		if r.median() > coldLimit {
			above = append(above, fmt.Sprintf("%s takes %.1f ms", r.function, milliseconds(r.median())))
		}
		if r.resident > residentLimit {
			above = append(above, fmt.Sprintf("%s keeps %.1f MB", r.function, megabytes(r.resident)))
		}
	}
	if len(above) > 0 {
		return fmt.Errorf("above %.0f ms or %.0f MB: %s", milliseconds(coldLimit), megabytes(residentLimit), strings.Join(above, "; "))
	}
	return nil
}

// String is the table in Markdown with what must be known to read it.
func (s *coldSummary) String() string {
	var b strings.Builder
	b.WriteString("| function | median ms | max ms | idle memory MB |\n|---|--:|--:|--:|\n")
	for _, r := range s.rows {
		fmt.Fprintf(&b, "| %s | %.1f | %.1f | %.1f |\n", r.function, milliseconds(r.median()), milliseconds(r.took[len(r.took)-1]), megabytes(r.resident))
	}
	fmt.Fprintf(&b, "\n%s\n", s.machine())
	fmt.Fprintf(&b, "Each function by itself, %d starts: from before the fork until its first call is answered 2xx, which takes a login to Postgres\n", s.runs)
	b.WriteString("and at least one query. Memory is VmRSS once it no longer changes after that, the most of all starts; a part of it is pages of\n")
	fmt.Fprintf(&b, "the binary, which instances on one machine share. The binary has %.1f MB (1 MB = 1000000 bytes);\nit was read from disk once and is in memory, as on a machine that had it before.\n", megabytes(s.binary))
	verdict := "Every median is at most %.0f ms and every memory at most %.0f MB.\n"
	if s.wrong() != nil {
		verdict = "NOT every median is at most %.0f ms and every memory at most %.0f MB.\n"
	}
	fmt.Fprintf(&b, verdict, milliseconds(coldLimit), megabytes(residentLimit))
	return b.String()
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }

func megabytes(bytes int64) float64 { return float64(bytes) / 1e6 }
