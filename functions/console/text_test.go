package console

import (
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// valueTexts has the values of the API that pages translate.
var valueTexts = slices.Concat(taskStates, taskReasons, messageStates, []string{
	"task", "message", "delivery", "subscribe", "caller", // kinds of search results
	"failure_rate", "backlog", "stream_full", // kinds of alerts
	"bulk cancel", "bulk retry", "bulk succeeded", "bulk failed", "bulk resend", "running", "finished", "stopped", // bulk changes
	"resend", "hold", "fail", // on_unknown
	"received", "replayed", "claimed", "extended", "sending", "report", "verdict", // events of a timeline
	"applied", "already", "stale_claim", "promoted", "timeout_retry", "timeout_held", "timeout_failed", "resolved", "retried", // verdicts
	"paused",             // queues
	"active", "inactive", // templates
	"stuck",                                                          // messages
	"enabled", "disabled", "failing", "gone", "by_hand", "delivered", // endpoints and deliveries
	"cloudevents", "slack", "dingtalk", "wecom", "feishu", // formats of endpoints
	"revoked", "open", "cleared", // callers and alerts
})

// Texts occur in templates as {{t "…"}}, in Go as p.T("…") or translate(language, "…"), and in valueTexts, notices, menu and roles.
func TestEveryTextHasATranslation(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, text := range slices.Concat(valueTexts, slices.Collect(maps.Values(notices))) {
		used[text] = true
	}
	for _, item := range menu {
		used[item.text] = true
	}
	for _, role := range roles {
		used[role.Text] = true
	}
	inTemplate := regexp.MustCompile(`\bt ("(?:[^"\\]|\\.)*")`)
	inGo := regexp.MustCompile(`(?:\bT\(|translate\(\w+(?:\.\w+)?, )("(?:[^"\\]|\\.)*")`)
	find := func(pattern *regexp.Regexp, source string) {
		for _, match := range pattern.FindAllStringSubmatch(source, -1) {
			text, err := strconv.Unquote(match[1])
			require.NoError(t, err)
			used[text] = true
		}
	}
	require.NoError(t, fs.WalkDir(templateFiles, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		source, err := fs.ReadFile(templateFiles, path)
		find(inTemplate, string(source))
		return err
	}))
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		find(inGo, string(source))
	}
	for _, unit := range []string{"%d ms", "%d s", "%d min", "%d h"} { // which duration reads from a table
		used[unit] = true
	}
	for _, text := range slices.Sorted(maps.Keys(used)) {
		switch {
		case chinese[text] == "":
			t.Errorf("not in chinese.go: %q", text)
		case strings.Count(text, "%") != strings.Count(chinese[text], "%"):
			t.Errorf("the translation has another number of values: %q", text)
		}
	}
	for text := range chinese {
		if !used[text] {
			t.Errorf("in chinese.go but not used: %q", text)
		}
	}
}

func TestNumberGroupsDigits(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000"} {
		require.Equal(t, want, number(n))
	}
}

func TestDurationPicksTheUnit(t *testing.T) {
	t.Parallel()
	for seconds, want := range map[float64]string{0.25: "250 ms", 59: "59 s", 119: "119 s", 120: "2 min", 7200: "2 h", 172800: "2 d"} {
		require.Equal(t, want, duration("en", seconds))
	}
	require.Equal(t, "2 分钟", duration("zh", 120.0))
	require.Equal(t, "–", duration("en", (*float64)(nil)))
}

func TestJSONIsNotIndentedIfThatMakesItVeryLong(t *testing.T) {
	t.Parallel()
	require.Equal(t, "{\n  \"a\": [\n    \"x,[\\\"\"\n  ]\n}", pretty(`{"a":["x,[\""]}`))
	nested := strings.Repeat("[", 19) + strings.Repeat("1,", 1000) + "1" + strings.Repeat("]", 19)
	require.Equal(t, nested, pretty(nested))
	deep := strings.Repeat("[", 5000) + strings.Repeat("]", 5000)
	require.Equal(t, deep, pretty(deep))
	require.Equal(t, "no JSON", pretty("no JSON"))
}

func TestNumbersInAnEventThatIsNotIndentedAreMasked(t *testing.T) {
	t.Parallel()
	nested := strings.Repeat("[", 19) + strings.Repeat(`"x",`, 1000) + `"13912345678"` + strings.Repeat("]", 19)
	for _, data := range []string{`{"phone":"13912345678"}`, `{"metadata":` + nested + `}`} {
		shown := maskedEvent(json.RawMessage(`{"specversion":"1.0","sequence":"13912345678","data":` + data + `}`))
		require.Contains(t, shown, "139****5678")
		require.Equal(t, 1, strings.Count(shown, "13912345678"), "the sequence is not a phone number")
	}
}
