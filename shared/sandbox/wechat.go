package sandbox

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/httpserver"
)

// With these limits, a flood of calls without an issued access token uses less than about 15 MB of memory. The server
// reads the body of a call to send a message, and records the call, only if the server has issued the call's access
// token.
const (
	wechatBody        = 1 << 20 // bytes of the body of a call to send a message
	wechatTokenBody   = 4 << 10 // bytes of the body of a call for an access token
	wechatConnections = 512     // see httpserver.New
	wechatLine        = 1000    // characters of a message's data in a log line
)

// WeChatOptions configures a fake WeChat. With the zero value, every openid, template and page
// exists, and every user consents to every message.
type WeChatOptions struct {
	AppID     string        // "" = WeChatAppID
	Secret    string        // "" = WeChatSecret
	TokenLife time.Duration // of a new access token; 0 = 2 hours
	OpenIDs   []string      // existing ones; none = all exist
	Templates []string      // existing ones; none = all exist
	Pages     []string      // existing ones, without a query; none = all exist
	OneTime   bool          // each message needs a Grant of its own
	Daily     int           // limit of sends with a valid token in one day of Asia/Shanghai; 0 = no limit
	Keep      int           // limit of the sends in the ledger, which keeps the newest; 0 = no limit

	Log func(format string, args ...any) // called for each recorded send and each returned token, from any goroutine; nil = none
}

// WeChat is a server that behaves like api.weixin.qq.com for subscribe messages and the
// stable access token. It keeps a ledger of calls and deliveries, and fails as configured
// with InjectFault. GET /ledger returns the ledger; its HTTP Basic password is the app
// secret. All methods may be called from any goroutine.
type WeChat struct {
	o      WeChatOptions
	server *httpserver.Server
	url    string
	stop   chan struct{}
	calls  sync.WaitGroup

	mu         sync.Mutex
	stopped    bool
	cleared    chan struct{} // closed by ClearFaults
	faults     []WeChatFault
	sends      []*WeChatSend
	tokenCalls int
	tokens     map[string]*wechatToken
	newest     string // the newest token; "" = none yet
	grants     map[wechatGrant]int
	day        string // of callsOfDay
	callsOfDay int
}

// WeChatSend is one call to send a message. It is in the ledger as soon as it arrives, if its access token was issued.
type WeChatSend struct {
	At         time.Time       `json:"at"`
	OpenID     string          `json:"openid"`
	TemplateID string          `json:"template_id"`
	Page       string          `json:"page,omitempty"`
	Data       json.RawMessage `json:"data,omitempty"` // as received
	State      string          `json:"miniprogram_state,omitempty"`
	Lang       string          `json:"lang,omitempty"`

	Delivered bool   `json:"delivered"` // to the user
	Errcode   int    `json:"errcode"`   // of a refusal, or of a fault without delivery; 0 = none, or the call is still delayed
	Fault     string `json:"fault"`     // the injected fault; "" = none, or the call is still delayed
}

type wechatGrant struct{ openID, templateID string }

// wechatToken is an issued access token.
type wechatToken struct {
	expiresAt time.Time
	replaced  bool // by a forced refresh
}

// URL returns the URL to use instead of https://api.weixin.qq.com.
func (w *WeChat) URL() string { return w.url }

// Stop ends the server and all delays, and waits until no call is in progress. Sends still returns
// the ledger.
func (w *WeChat) Stop() error {
	w.mu.Lock()
	alreadyStopped := w.stopped
	w.stopped = true
	w.mu.Unlock()
	if alreadyStopped {
		return nil
	}
	close(w.stop)
	err := w.server.Close()
	w.calls.Wait()
	return err
}

// counted makes a handler count its calls in w.calls. Stop waits for them, so that they log nothing after Stop has
// returned.
func (w *WeChat) counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		if w.stopped {
			w.mu.Unlock()
			panic(http.ErrAbortHandler) // no response
		}
		w.calls.Add(1)
		w.mu.Unlock()
		defer w.calls.Done()
		next.ServeHTTP(rw, r)
	})
}

// Grant adds n consents of a user to messages of a template, for the option OneTime.
func (w *WeChat) Grant(openID, templateID string, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.grants[wechatGrant{openID, templateID}] += n
}

// AllowPerDay changes the option Daily.
func (w *WeChat) AllowPerDay(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.o.Daily = n
}

// Sends returns the ledger of calls to send a message, the oldest first. With the option Keep these
// are only the newest calls.
func (w *WeChat) Sends() []WeChatSend {
	w.mu.Lock()
	defer w.mu.Unlock()
	sends := make([]WeChatSend, len(w.sends))
	for i, s := range w.sends {
		sends[i] = *s
	}
	return sends
}

// Delivered returns the delivered messages of Sends.
func (w *WeChat) Delivered() []WeChatSend {
	return slices.DeleteFunc(w.Sends(), func(s WeChatSend) bool { return !s.Delivered })
}

// TokenCalls returns the number of calls for an access token.
func (w *WeChat) TokenCalls() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tokenCalls
}

func (w *WeChat) ledger(rw http.ResponseWriter, r *http.Request) {
	if _, password, _ := r.BasicAuth(); subtle.ConstantTimeCompare([]byte(password), []byte(w.o.Secret)) != 1 {
		rw.Header().Set("WWW-Authenticate", "Basic")
		http.Error(rw, "the password must be the app secret", http.StatusUnauthorized)
		return
	}
	writeWeChatResponse(rw, struct {
		TokenCalls int          `json:"token_calls"`
		Sends      []WeChatSend `json:"sends"`
	}{w.TokenCalls(), w.Sends()})
}

// String returns the log line of the call.
func (s WeChatSend) String() string {
	outcome := "delivered to " + s.OpenID
	if !s.Delivered {
		outcome = "not delivered to " + s.OpenID
	}
	if s.Errcode != 0 {
		outcome += fmt.Sprintf(" (errcode %d)", s.Errcode)
	}
	if s.Fault != "" {
		outcome += ", " + s.Fault
	}
	return fmt.Sprintf("%s: %.*s (template %s)", outcome, wechatLine, s.Data, s.TemplateID)
}

// wechatResult is a response with an errcode; code 0 is success.
type wechatResult struct {
	code    int
	message string
}

// MarshalJSON adds a request id, as WeChat does.
func (r wechatResult) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]any{"errcode": r.code, "errmsg": r.message + " rid: " + strings.ToLower(rand.Text()[:16])})
}

func (w *WeChat) logf(format string, args ...any) {
	if w.o.Log != nil {
		w.o.Log(format, args...)
	}
}

func writeWeChatResponse(rw http.ResponseWriter, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		http.Error(rw, err.Error(), http.StatusInternalServerError)
		return
	}
	rw.Header().Set("Content-Type", "application/json; encoding=utf-8")
	_, _ = rw.Write(text) // the caller may be gone
}
