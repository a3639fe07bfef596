package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

const (
	maxLine      = 64 << 10 // of the log, in bytes; the rest of a longer line is not read
	warningCheck = 200 * time.Millisecond
)

// showWarnings prints what is added to a log file about webhook endpoints, until ctx is done.
func showWarnings(ctx context.Context, name string, out io.Writer) {
	log, err := os.Open(name)
	if err != nil {
		fmt.Fprintf(out, "warnings are not shown: %v\n", err)
		return
	}
	defer log.Close()
	read, err := log.Seek(0, io.SeekEnd)
	shown := &warnings{out: out}
	for err == nil && pause(ctx, warningCheck) {
		state, statErr := log.Stat()
		if statErr == nil && state.Size() < read { // it was emptied
			read, statErr = log.Seek(0, io.SeekStart)
		}
		added, copyErr := io.Copy(shown, log)
		read, err = read+added, errors.Join(statErr, copyErr)
	}
	if err != nil {
		fmt.Fprintf(out, "the warnings in %s are no longer shown: %v\n", name, err)
	}
}

// warnings prints when a webhook endpoint fails, is disabled or has recovered, from the log of a
// function.
type warnings struct {
	out  io.Writer
	line []byte // not complete yet
}

func (w *warnings) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		part, after, ended := bytes.Cut(rest, []byte("\n"))
		if len(w.line)+len(part) <= maxLine {
			w.line = append(w.line, part...)
		}
		if ended {
			w.show(w.line)
			w.line = w.line[:0]
		}
		rest = after
	}
	return len(b), nil
}

func (w *warnings) show(line []byte) {
	var entry struct {
		Msg        string
		EndpointID string `json:"endpoint_id"`
		Host       string
		Reason     string
		Error      string
	}
	if !bytes.Contains(line, []byte("webhook endpoint ")) || json.Unmarshal(line, &entry) != nil {
		return
	}
	what, found := strings.CutPrefix(entry.Msg, "webhook endpoint ")
	if !found {
		return
	}
	text := printable(entry.Host) + " " + what
	if entry.Reason != "" {
		text += " (" + entry.Reason + ")"
	}
	if entry.Error != "" {
		text += ": " + printable(entry.Error)
	}
	printStep(w.out, "webhook", fmt.Sprintf("%s; endpoint %s", text, printable(entry.EndpointID)))
}
