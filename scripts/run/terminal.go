package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/sendonce/sendonce/shared/text"
)

const tailLines = 15

// tail returns the last tailLines lines of text.
func tail(text string) string {
	lines := strings.SplitAfter(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "")
}

// printStep prints one line: the step, such as "start", in a column of its own, and what.
func printStep(out io.Writer, step, what string) {
	fmt.Fprintln(out, strings.TrimSpace(fmt.Sprintf("%-9s %s", step, what)))
}

// printable replaces control characters, which could move the terminal's cursor, with spaces.
func printable(s string) string { return text.Printable(s, ' ') }
