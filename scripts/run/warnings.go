package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

const longestLine = 64 << 10 // of a log that is looked at, in bytes

// warnings passes the log of one process on to a file, and prints in the
// terminal what a person who tries Sendonce must know: a webhook endpoint that
// fails, is disabled or has recovered.
type warnings struct {
	log, out io.Writer
	line     []byte // begun and not ended
}

func (w *warnings) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		part, after, ended := bytes.Cut(rest, []byte("\n"))
		if len(w.line)+len(part) <= longestLine {
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
	var said struct {
		Msg        string
		EndpointID string `json:"endpoint_id"`
		Host       string
		Reason     string
		Error      string
	}
	// What is not JSON is not ours to show.
	if !bytes.Contains(line, []byte("webhook endpoint ")) || json.Unmarshal(line, &said) != nil {
		return
	}
	what, ours := strings.CutPrefix(said.Msg, "webhook endpoint ")
	if !ours {
		return
	}
	text := printable(said.Host) + " " + what
	if said.Reason != "" {
		text += " (" + said.Reason + ")"
	}
	if said.Error != "" {
		text += ": " + printable(said.Error)
	}
	progress(w.out, "webhook", fmt.Sprintf("%s; endpoint %s", text, printable(said.EndpointID)))
}
