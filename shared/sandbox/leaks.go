package sandbox

import (
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// leaks are the forms of what no log line and no error may show. Tests use phone
// numbers of mainland China and secrets of these forms.
var leaks = map[string]*regexp.Regexp{
	"a full phone number":          regexp.MustCompile(`(?:^|[^0-9A-Za-z_.-])(?:\+?86|0086)?1[3-9][0-9]{9}(?:$|[^0-9A-Za-z_.-])`),
	"a signing secret":             regexp.MustCompile(`whsec_[A-Za-z0-9+/]{16}`),
	"a password in a URL":          regexp.MustCompile(`[a-z]://[^:@/\s"]+:[^@/\s"]+@`),
	"credentials of HTTP":          regexp.MustCompile(`\b(?i:basic|bearer) [A-Za-z0-9+/_-]*[0-9=][A-Za-z0-9+/=_-]{7,}`),
	"an access token":              regexp.MustCompile(`access_token[=":\s]+[A-Za-z0-9]`),
	"the token of a caller":        regexp.MustCompile(`(?:^|[^A-Za-z0-9_/+-])[A-Za-z0-9][A-Za-z0-9_-]{41}[A-Za-z0-9](?:$|[^A-Za-z0-9_/+=-])`),
	"an encryption key":            regexp.MustCompile(regexp.QuoteMeta(EncryptionKey)),
	"the secret of the WeChat app": regexp.MustCompile(regexp.QuoteMeta(WeChatSecret)),
	"a password of a test":         regexp.MustCompile(`hunter2`),
}

// examples are in texts that tell an operator what to type.
var examples = strings.NewReplacer("//user:password@", "//", `{"phone_number":"13800138000","content":"hello"}`, "{}")

// CheckLeaks fails the test for each line of a log or an error that shows a secret
// or a full phone number.
func CheckLeaks(t testing.TB, from, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		line = examples.Replace(line)
		for what, form := range leaks {
			if form.MatchString(line) {
				t.Errorf("%s shows %s: %s", from, what, strings.TrimSpace(line))
			}
		}
	}
}

// Log gives a logger of all levels for the length of the test. What is written to it
// is checked as CheckLeaks does.
func Log(t testing.TB) *slog.Logger {
	l := &checkedLog{t: t}
	t.Cleanup(l.end)
	return slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// checkedLog gets one line with each write. Some come after the end of the test, when
// it must not be failed any more.
type checkedLog struct {
	t    testing.TB
	mu   sync.Mutex
	over bool
}

func (l *checkedLog) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
}

func (l *checkedLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		CheckLeaks(l.t, fmt.Sprintf("the log of %s", l.t.Name()), string(line))
	}
	return len(line), nil
}
