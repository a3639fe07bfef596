package fn

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/store/callers"
)

// Visit is a request for a page. It must not be used after the page's handler has returned.
type Visit struct {
	*http.Request
	Caller callers.Caller // Name is "" if the visitor is not logged in

	req    *request
	api    http.Handler
	memory *visitMemory
}

// LoggedIn reports whether the visitor has a valid session.
func (v *Visit) LoggedIn() bool { return v.Caller.Name != "" }

// May reports whether the visitor has the role or is an admin. Unlike Call.May, it includes admins with queues.
func (v *Visit) May(role Role) bool { return v.req.call.HasRole(role) || v.req.call.HasRole(Admin) }

// Log adds attributes to the log line of the visit, as Call.Log does.
func (v *Visit) Log(args ...any) { v.req.call.Log(args...) }

// API calls a route of the API in this process, with the visitor's rights, limits and address. API decodes the
// data of the response into out, unless out is nil. body is encoded as JSON; nil = no body. If the route refuses the
// call, or the visitor has no memory left for the response, the error is an *api.Error.
func (v *Visit) API(method, path string, body, out any) error {
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("encode the call: %w", err)
		}
		content = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(context.WithValue(v.Context(), inProcessCaller{}, v.Caller), method, path, content)
	if err != nil {
		return fmt.Errorf("call %s: %w", path, err)
	}
	r.RemoteAddr = v.RemoteAddr
	for _, name := range []string{"X-Forwarded-For", "User-Agent"} {
		r.Header[name] = v.Header[name]
	}
	if body != nil {
		r.Header.Set("Content-Type", contentTypeJSON)
	}
	w := &recorder{header: http.Header{}}
	v.api.ServeHTTP(w, r)
	v.memory.responses += w.body.Len()
	if err := v.memory.reserve(0); err != nil {
		return err
	}
	return w.decode(out)
}

// ReleaseResponses lets the page use the memory that is charged for all responses so far for its text and for further
// responses. Call it when the data of the responses so far is no longer used.
func (v *Visit) ReleaseResponses() { v.memory.responses = 0 }

// Buffer returns an empty buffer for the text of the page.
func (v *Visit) Buffer() *PageBuffer { return &PageBuffer{memory: v.memory} }

// recorder keeps the response of a call in this process.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (w *recorder) Header() http.Header         { return w.header }
func (w *recorder) Write(b []byte) (int, error) { return w.body.Write(b) }
func (w *recorder) WriteHeader(status int)      { w.status = status }

func (w *recorder) decode(out any) error {
	if w.status == http.StatusNoContent {
		return nil
	}
	envelope := struct {
		api.Envelope
		Data json.RawMessage `json:"data"`
	}{}
	if err := json.Unmarshal(w.body.Bytes(), &envelope); err != nil {
		return fmt.Errorf("decode the response of status %d: %w", w.status, err)
	}
	if w.status/100 != 2 {
		return &api.Error{Status: w.status, Code: envelope.Error, Message: envelope.Message, Fields: envelope.Fields}
	}
	if out == nil || len(envelope.Data) == 0 {
		return nil
	}
	return json.Unmarshal(envelope.Data, out)
}
