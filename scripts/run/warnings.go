package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

const maxLine = 64 << 10 // of the log, in bytes; the rest of a longer line is not read

// warnings writes the log of a process to a file, and prints in the terminal when a
// webhook endpoint fails, is disabled or has recovered.
type warnings struct {
	log, out io.Writer
	line     []byte // not complete yet
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
	return w.log.Write(b)
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
