package sandbox

import (
	"bytes"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// leak is a pattern of text that no log line, process output or error response may contain.
type leak struct {
	pattern *regexp.Regexp
	// Only a line that passes these three cheap checks is compared with pattern, because a pattern
	// that does not begin with a literal is slow under the race detector.
	digits int      // the line must have a run of at least so many digits
	word   int      // the line must have a run of at least so many letters, digits, _ and -
	anyOf  []string // the line must have one of these texts, ignoring case; nil = no check
}

// leaks has the patterns by name. A leaked secret or phone number of a test is found only if it matches one of
// them: use the password hunter2, for example.
var leaks = map[string]leak{
	"a full phone number": {digits: 11, pattern: regexp.MustCompile(`(?:^|[^0-9A-Za-z_.-])(?:\+?86|0086)?1[3-9][0-9]{9}(?:$|[^0-9A-Za-z_.-])`)},
	"a signing secret":    {pattern: regexp.MustCompile(`whsec_[A-Za-z0-9+/]{16}`)},
	"a password in a URL": {anyOf: []string{"://"}, pattern: regexp.MustCompile(`[a-z]://[^:@/\s"]+:[^@/\s"]+@`)},
	"credentials of HTTP": {anyOf: []string{"basic ", "bearer "}, pattern: regexp.MustCompile(`\b(?i:basic|bearer) [A-Za-z0-9+/_-]*[0-9=][A-Za-z0-9+/=_-]{7,}`)},
	"an access token":     {pattern: regexp.MustCompile(`access_token[=":\s]+[A-Za-z0-9]`)},
	"the token of a caller": {
		word: 43, pattern: regexp.MustCompile(`(?:^|[^A-Za-z0-9_/+-])[A-Za-z0-9][A-Za-z0-9_-]{41}[A-Za-z0-9](?:$|[^A-Za-z0-9_/+=-])`),
	},
	"an encryption key":            {pattern: regexp.MustCompile(regexp.QuoteMeta(EncryptionKey))},
	"the secret of the WeChat app": {pattern: regexp.MustCompile(regexp.QuoteMeta(WeChatSecret))},
	"a password of a test":         {pattern: regexp.MustCompile(`hunter2`)},
}

// longestRuns returns the length of the longest run of digits, and of the longest run of letters,
// digits, _ and -. It shares no data, so it needs no race detector, which would make it slow.
//
//go:norace
func longestRuns(line string) (digits, word int) {
	digitRun, wordRun := 0, 0
	for i := range len(line) {
		switch c := line[i]; {
		case '0' <= c && c <= '9':
			digitRun, wordRun = digitRun+1, wordRun+1
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', c == '_', c == '-':
			digitRun, wordRun = 0, wordRun+1
		default:
			digitRun, wordRun = 0, 0
		}
		digits, word = max(digits, digitRun), max(word, wordRun)
	}
	return digits, word
}

// examples removes the parts of printed instructions that only look like secrets.
var examples = strings.NewReplacer("//user:password@", "//", `{"phone_number":"13800138000","content":"hello"}`, "{}")

// CheckLeaks fails the test for each line of text that shows a secret or a full phone number.
// origin names the text in the failure, such as "the log".
func CheckLeaks(t testing.TB, origin, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		line = examples.Replace(line)
		digits, word := longestRuns(line)
		lower := strings.ToLower(line)
		for name, l := range leaks {
			possible := l.anyOf == nil || slices.ContainsFunc(l.anyOf, func(part string) bool { return strings.Contains(lower, part) })
			if possible && digits >= l.digits && word >= l.word && l.pattern.MatchString(line) {
				t.Errorf("%s shows %s: %s", origin, name, strings.TrimSpace(line))
			}
		}
	}
}

// Log returns a logger of all levels that prints nothing. Until the end of the test, it checks its lines with CheckLeaks.
func Log(t testing.TB) *slog.Logger {
	l := &checkedLog{t: t}
	t.Cleanup(l.end)
	return slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// checkedLog checks one line with each write. It ignores lines after the end of the test: a failure would then be a
// panic.
type checkedLog struct {
	t     testing.TB
	mu    sync.Mutex
	ended bool
}

func (l *checkedLog) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
}

func (l *checkedLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		CheckLeaks(l.t, "the log of "+l.t.Name(), string(line))
	}
	return len(line), nil
}

// LogBuffer collects log lines. It may be read while it is written.
type LogBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *LogBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *LogBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
