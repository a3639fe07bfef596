package apidocs

import (
	"embed"
	"fmt"
	"strings"
)

// The reference shows parts of these programs. A test runs each program against a server.
//
//go:embed examples
var examplePrograms embed.FS

// example is one use case, with the excerpt of each program that shows it.
type example struct {
	Name, Title string
	Programs    []excerpt
}

type excerpt struct{ Language, Text string }

var exampleTitles = []struct{ name, title string }{
	{"setup", "Set up a client"},
	{"send", "Submit an SMS with a key, which makes the call repeatable"},
	{"by-key", "Read a task by its key"},
	{"claim", "Claim tasks to send"},
	{"report", "Report the outcome"},
	{"endpoint", "Receive events at an endpoint"},
	{"verify", "Verify a webhook's signature"},
	{"message", "Send a message to a user"},
	{"stream", "Read the messages of a user as they arrive"},
}

var exampleFiles = []struct{ language, path, marker string }{
	{"curl", "examples/example.sh", "# --- "},
	{"Go", "examples/example.go", "// --- "},
	{"Python", "examples/example.py", "# --- "},
	{"TypeScript", "examples/example.ts", "// --- "},
}

// readExamples returns the excerpts of all programs.
func readExamples() ([]example, error) {
	var all []example
	for _, t := range exampleTitles {
		shown := example{Name: t.name, Title: t.title}
		for _, f := range exampleFiles {
			program, err := examplePrograms.ReadFile(f.path)
			if err != nil {
				return nil, err
			}
			text := part(string(program), f.marker, t.name)
			if text == "" {
				return nil, fmt.Errorf("%s has no part %q", f.path, t.name)
			}
			shown.Programs = append(shown.Programs, excerpt{f.language, text})
		}
		all = append(all, shown)
	}
	return all, nil
}

// part returns the lines between the marker line of name and the next marker line, without the indentation of the first of these
// lines. A marker line is the marker and a name.
func part(program, marker, name string) string {
	var lines []string
	inside := false
	for line := range strings.Lines(program) {
		if text, isMarker := strings.CutPrefix(strings.TrimSpace(line), marker); isMarker {
			inside = text == name
		} else if inside {
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
	}
	indent := 0
	if len(lines) > 0 {
		indent = len(lines[0]) - len(strings.TrimLeft(lines[0], "\t "))
	}
	for i, line := range lines {
		lines[i] = strings.ReplaceAll(line[min(indent, len(line)):], "\t", "    ")
	}
	return strings.TrimSpace(strings.Join(lines, "\n"))
}
