package functions

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/command"
	"github.com/sendonce/sendonce/shared/sandbox"
)

var update = flag.Bool("update", false, "rewrite the generated parts of docs")

func readPage(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

// generatedPart returns the text between the marks of name on a page, and the text before and after it.
func generatedPart(t *testing.T, path, name string) (before, part, after string) {
	t.Helper()
	before, rest, found := strings.Cut(readPage(t, path), "<!-- "+name+" -->\n")
	require.True(t, found, path)
	part, after, found = strings.Cut(rest, "<!-- /"+name+" -->")
	require.True(t, found, path)
	return before, part, after
}

// requirePart compares the text between the marks of name on a page with want, or replaces it with -update.
func requirePart(t *testing.T, path, name, want string) {
	t.Helper()
	before, part, after := generatedPart(t, path, name)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(before+"<!-- "+name+" -->\n"+want+"<!-- /"+name+" -->"+after), 0o644))
		return
	}
	sandbox.RequireGolden(t, path, part, want, "go test ./functions -run TestDocs -update")
}

func settingsTable() string { return command.ConfigTable(Commands(), Catalogue()...) }

func TestDocsListEverySetting(t *testing.T) {
	t.Parallel()
	requirePart(t, "../docs/settings.md", "settings", settingsTable())
}

// In the Chinese table, the column of meanings is written by hand, and the other columns are generated.
func TestDocsListEverySettingInChinese(t *testing.T) {
	t.Parallel()
	const page = "../docs/zh-CN/settings.md"
	cells := func(row string) []string { return strings.Split(strings.Trim(row, "| \n"), " | ") }
	_, table, _ := generatedPart(t, page, "settings")
	meaning := map[string]string{}
	for row := range strings.Lines(table) {
		if c := cells(row); len(c) == 4 {
			meaning[c[0]] = c[2]
		}
	}
	var want strings.Builder
	want.WriteString("| 名称 | 默认值 | 含义 | 读取者 |\n|---|---|---|---|\n")
	for row := range strings.Lines(settingsTable()) {
		c := regexp.MustCompile(`^\| (\S+) \| (.*?) ?\| .* \| (.*?) \|\n$`).FindStringSubmatch(row)
		if c == nil || c[1] == "Name" {
			continue
		}
		require.NotEmpty(t, meaning[c[1]], "write the row of %s into %s: | %s | | its meaning in Chinese | |", c[1], page, c[1])
		fmt.Fprintf(&want, "| %s | %s | %s | %s |\n", c[1], c[2], meaning[c[1]], strings.Replace(c[3], "all", "全部", 1))
	}
	requirePart(t, page, "settings", want.String())
}

func TestDocsListFeaturesByNATSVersion(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("| nats-server | needed for | with an older one |\n|---|---|---|\n")
	for _, f := range bus.Features() {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", f.Since, f.Name, f.Without)
		require.Contains(t, readPage(t, "../docs/zh-CN/platform.md"), "\n| "+f.Since+" | ")
	}
	requirePart(t, "../docs/platform.md", "nats", b.String())
}

// pages returns the paths of all pages of the documentation.
func pages(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../docs/zh-CN/*.md", "../deploy/*.md", "../.github/*.md"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		all = append(all, found...)
	}
	require.Greater(t, len(all), 20)
	return all
}

// The commands in the docs work unchanged while `make run` runs: the API is on 8000, the sink on 8001, Postgres on 5432.
// `make example` is on 8081 and 8082.
func TestDocsUseThePortsOfMakeRun(t *testing.T) {
	t.Parallel()
	for _, path := range append(pages(t), "../scripts/sender/flags.go", "../scripts/example/main.go") {
		for _, match := range regexp.MustCompile(`(?:127\.0\.0\.1|localhost):(\d+)`).FindAllStringSubmatch(readPage(t, path), -1) {
			require.Contains(t, []string{"8000", "8001", "8081", "8082", "5432"}, match[1], "%s: %s", path, match[0])
		}
	}
}

// The points service of `make example` reads msg.orders.paid and logs a warning for each message of another program there.
func TestDocsUseNoSubjectOfMakeExample(t *testing.T) {
	t.Parallel()
	for _, path := range pages(t) {
		require.NotRegexp(t, `"to": *"msg\.orders\.`, readPage(t, path), path)
	}
}

// A Chinese page has the same commands as the English page, and names the same API paths and settings.
func TestDocsHaveTheSameFactsInBothLanguages(t *testing.T) {
	t.Parallel()
	english, err := filepath.Glob("../docs/*.md")
	require.NoError(t, err)
	chinese, err := filepath.Glob("../docs/zh-CN/*.md")
	require.NoError(t, err)
	require.Len(t, chinese, len(english))
	settings := regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\|").FindAllStringSubmatch(settingsTable(), -1)
	facts := func(path string) (blocks []string) {
		text := readPage(t, path)
		for _, block := range regexp.MustCompile("(?s)```sh\n.*?```").FindAllString(text, -1) {
			blocks = append(blocks, regexp.MustCompile(`\s+#\s.*`).ReplaceAllString(block, ""))
		}
		names := regexp.MustCompile(`/(?:api/v1|events)/[a-zA-Z0-9/{}_*-]+`).FindAllString(text, -1)
		for _, setting := range settings {
			if regexp.MustCompile(`\b` + setting[1] + `\b`).MatchString(text) {
				names = append(names, setting[1])
			}
		}
		slices.Sort(names)
		return append(blocks, slices.Compact(names)...)
	}
	for _, path := range append(english, "../README.md") {
		other := filepath.Join("../docs/zh-CN", filepath.Base(path))
		if path == "../README.md" {
			other = "../README.zh-CN.md"
		}
		require.Equal(t, facts(path), facts(other), "%s and %s", path, other)
	}
}

func TestDocsHaveNoBrokenLinks(t *testing.T) {
	t.Parallel()
	for _, path := range pages(t) {
		for _, match := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(readPage(t, path), -1) {
			file, anchor, _ := strings.Cut(match[1], "#")
			if strings.Contains(file, "://") {
				continue
			}
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			_, err := os.Stat(target)
			require.NoError(t, err, "%s links to %s", path, match[1])
			if anchor != "" {
				require.Contains(t, anchors(readPage(t, target)), anchor, "%s links to %s", path, match[1])
			}
		}
	}
}

// anchors returns the names that GitHub gives to the headings of a page.
func anchors(text string) (all []string) {
	text = regexp.MustCompile("(?s)```.*?```").ReplaceAllString(text, "")
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		all = append(all, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
				return unicode.ToLower(r)
			}
			return -1
		}, heading[1]))
	}
	return all
}
