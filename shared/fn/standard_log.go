package fn

import (
	"log/slog"
	"strings"

	"github.com/sendonce/sendonce/shared/loglimit"
)

// standardLog logs what libraries write with package log. If a receiver of webhooks sends data after its
// response, net/http writes this data with package log, once for each connection. standardLog logs only
// that a receiver did so, without the data and at most once a minute.
type standardLog struct {
	log         *slog.Logger
	unsolicited loglimit.Limit
}

const unsolicitedResponse = "Unsolicited response received"

// Write is io.Writer's. Package log calls Write once for each line.
func (l *standardLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	if !strings.HasPrefix(text, unsolicitedResponse) {
		l.log.Warn("library", "text", text)
	} else if unlogged, log := l.unsolicited.Next(); log {
		l.log.Warn("a receiver sent data after its response", "unlogged", unlogged)
	}
	return len(line), nil
}
