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
	maxLine      = 64 << 10 // bytes of a log line; the rest of a longer line is ignored
	warningCheck = 200 * time.Millisecond
)

// showWarnings prints new lines of a log file that are about webhook endpoints, until ctx is done.
func showWarnings(ctx context.Context, name string, out io.Writer) {
	log, err := os.Open(name)
	if err != nil {
		fmt.Fprintf(out, "warnings are not shown: %v\n", err)
		return
	}
	defer log.Close()
	offset, err := log.Seek(0, io.SeekEnd)
	shown := &warnings{out: out}
	for err == nil && pause(ctx, warningCheck) {
		info, statErr := log.Stat()
		if statErr == nil && info.Size() < offset { // boundLog emptied the file
			offset, statErr = log.Seek(0, io.SeekStart)
		}
		added, copyErr := io.Copy(shown, log)
		offset, err = offset+added, errors.Join(statErr, copyErr)
	}
	if err != nil {
		fmt.Fprintf(out, "the warnings in %s are no longer shown: %v\n", name, err)
	}
}

// warnings is a writer for the log of a function. It prints when a webhook endpoint fails, is
// disabled or has recovered.
type warnings struct {
	out  io.Writer
	line []byte // the incomplete last line
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
	change, found := strings.CutPrefix(entry.Msg, "webhook endpoint ")
	if !found {
		return
	}
	text := printable(entry.Host) + " " + change
	if entry.Reason != "" {
		text += " (" + entry.Reason + ")"
	}
	if entry.Error != "" {
		text += ": " + printable(entry.Error)
	}
	printStep(w.out, "webhook", fmt.Sprintf("%s; endpoint %s", text, printable(entry.EndpointID)))
}
