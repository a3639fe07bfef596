package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"syscall"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sender"
	"github.com/sendonce/sendonce/shared/text"
)

// terminal is a log handler that writes one line for each record: what the sender did, or what failed and how to fix it.
type terminal struct {
	out io.Writer // must be safe for concurrent use, such as os.Stderr
	o   *options
}

// Enabled returns true: each send is logged at the level debug.
func (terminal) Enabled(context.Context, slog.Level) bool { return true }

// WithAttrs returns t unchanged: the sender uses neither WithAttrs nor WithGroup.
func (t terminal) WithAttrs([]slog.Attr) slog.Handler { return t }

func (t terminal) WithGroup(string) slog.Handler { return t }

func (t terminal) Handle(_ context.Context, r slog.Record) error {
	attrs := map[string]slog.Value{}
	var rest []string
	r.Attrs(func(a slog.Attr) bool {
		attrs[a.Key] = a.Value
		if a.Key != "error" {
			rest = append(rest, a.Key+" "+a.Value.String())
		}
		return true
	})
	err, _ := attrs["error"].Any().(error)
	line := ""
	switch r.Message {
	case sender.LogConnected:
		line = fmt.Sprintf("connected to %s as %s, waiting for tasks of queue %s", t.o.url, t.o.config.AppID, t.o.config.Queue)
		if outage, found := attrs["away"]; found {
			line += fmt.Sprintf(" (after %s without the service)", outage)
		}
	case sender.LogSent:
		line = fmt.Sprintf("task %s to %s: %s", attrs["task_id"], attrs["phone"], attrs["outcome"])
		if detail := strings.TrimSpace(attrs["code"].String() + " " + attrs["message"].String()); detail != "" {
			line += ", " + detail
		}
	case sender.LogClaimFailed:
		line = fmt.Sprintf("cannot claim tasks: %s; trying again until it works", t.explain(err))
	case sender.LogReportFailed:
		line = fmt.Sprintf("cannot report %s: %s; trying again until it works", attrs["reports"], t.explain(err))
	default:
		line = strings.TrimPrefix(r.Message, "sender: ")
		if err != nil {
			line += ": " + err.Error()
		}
		if len(rest) > 0 {
			line += " (" + strings.Join(rest, ", ") + ")"
		}
	}
	_, writeErr := fmt.Fprintln(t.out, "sender: "+text.Printable(line, ' '))
	return writeErr
}

// explain says why a call failed and, if known, how to fix it.
func (t terminal) explain(err error) string {
	var refused *api.Error
	var unresolved *net.DNSError
	switch {
	case errors.As(err, &refused) && refused.Status == http.StatusUnauthorized:
		return fmt.Sprintf("the service does not accept the user %q with this password: check -user and -password (SENDONCE_USER, SENDONCE_PASSWORD)", t.o.user)
	case errors.As(err, &refused) && refused.Status == http.StatusForbidden:
		return fmt.Sprintf("the user %q needs the role sender and the queue %q (%s)", t.o.user, t.o.config.Queue, refused.Message)
	case errors.As(err, &refused) && refused.Code == "":
		return fmt.Sprintf("the response %d is not from Sendonce: check -url, which is %s", refused.Status, t.o.url)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Sprintf("nothing listens at %s: start make run, or give the address of the service with -url", t.o.url)
	case errors.As(err, &unresolved):
		return fmt.Sprintf("the host of %s is not known: check -url", t.o.url)
	default:
		return fmt.Sprint(err)
	}
}
