package fn

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/httpserver"
)

const (
	heartbeat          = 15 * time.Second // shorter than the usual idle timeout of proxies
	clientWriteTimeout = 10 * time.Second // of one event or frame
)

// EventWriter writes the events of one stream. The first write sends status 200. Each write is
// flushed. If a write takes 10 s because the client does not read, the stream ends, so no events are buffered
// for a slow client. Send copies its data: reserve memory for both copies of large data. A heartbeat
// is sent 15 s after the last write. If a write fails, the client is lost: all further writes return
// the same error.
type EventWriter struct {
	req *request
	out *http.ResponseController

	ctx    context.Context // of the handler
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	beat  *time.Timer // sends the next heartbeat; nil until the stream has begun
	err   error       // of the first failed write
	ended bool
}

// Send sends one event of the type event. To resume after a broken connection, a client sends the last
// id that it received. id and event must not have a line break. If the caller was revoked or changed,
// nothing is sent, and the stream ends.
func (w *EventWriter) Send(id, event string, data []byte) error {
	if err := w.req.confirmUnchanged(w.ctx, w.cancel); err != nil {
		return err
	}
	var b bytes.Buffer
	b.Grow(len(id) + len(event) + len(data) + 64)
	fmt.Fprintf(&b, "id: %s\nevent: %s\n", id, event)
	if bytes.IndexByte(data, '\r') >= 0 { // ReplaceAll always makes a copy
		data = bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n"))
		data = bytes.ReplaceAll(data, []byte("\r"), []byte("\n"))
	}
	for line := range bytes.SplitSeq(data, []byte("\n")) {
		b.WriteString("data: ")
		b.Write(line)
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
	return w.write(b.Bytes())
}

// Mark sends an id to resume from, without an event. If a mark is sent before the first event, a client whose
// connection breaks before this event misses nothing.
func (w *EventWriter) Mark(id string) error { return w.write([]byte("id: " + id + "\n\n")) }

// Comment sends a line for people; clients ignore it.
func (w *EventWriter) Comment(text string) error {
	return w.write([]byte(": " + strings.NewReplacer("\r", " ", "\n", " ").Replace(text) + "\n\n"))
}

func (w *EventWriter) write(chunk []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended || w.err != nil {
		return cmp.Or(w.err, errors.New("the stream has ended"))
	}
	if w.beat == nil {
		w.begin()
	}
	if err := w.push(chunk); err != nil {
		w.err = fmt.Errorf("write the stream: %w", err)
		w.cancel(nil)
	}
	w.beat.Reset(heartbeat)
	return w.err
}

// begin sends status 200; mu is held.
func (w *EventWriter) begin() {
	w.req.call.dropHeaders()
	h := w.req.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // nginx would hold events back
	w.req.status = http.StatusOK
	w.req.w.WriteHeader(http.StatusOK)
	w.beat = time.AfterFunc(heartbeat, func() { _ = w.write([]byte(":\n\n")) }) // write records its error and ends the handler
}

// push writes and flushes; mu is held.
func (w *EventWriter) push(chunk []byte) error {
	if err := w.setWriteDeadline(time.Now().Add(clientWriteTimeout)); err != nil {
		return err
	}
	n, err := w.req.w.Write(chunk)
	w.req.bytes += n
	if err == nil {
		err = w.out.Flush()
	}
	return err
}

func (w *EventWriter) setWriteDeadline(deadline time.Time) error {
	if err := w.out.SetWriteDeadline(deadline); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// end makes further writes fail, and returns the error of the first failed write. The rest of the
// response, and later responses on the connection, get the usual write deadline.
func (w *EventWriter) end() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.beat != nil && !w.ended {
		w.beat.Stop()
		_ = w.setWriteDeadline(time.Now().Add(httpserver.WriteTimeout)) // fails on a connection that has ended
	}
	w.ended = true
	return w.err
}
