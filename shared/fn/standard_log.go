package fn

import (
	"log/slog"
	"strings"

	"github.com/sendonce/sendonce/shared/loglimit"
)

// standardLog logs what libraries write with package log. If a receiver sends data after its
// response, net/http writes that data with package log, once for each connection. Once a minute,
// standardLog logs that a receiver did so, without the data.
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
