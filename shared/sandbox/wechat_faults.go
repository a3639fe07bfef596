package sandbox

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// WeChatFault says which calls of a fake WeChat go wrong, and how:
//
//	{Errcode: 45011, Times: 3}          three calls are refused
//	{Drop: true}                        no call is answered, nothing is delivered
//	{Drop: true, After: true}           all is delivered, no call is answered
//	{Status: 502, After: true}          delivered, and then an error of a gateway
//	{Body: "<html>", After: true}       delivered, and then no JSON
//	{Delay: time.Hour}                  neither delivered nor answered until Mend
//	{Delay: time.Hour, After: true}     delivered, but not answered until Mend
type WeChatFault struct {
	Tokens     bool   // hits the calls for an access token; false = those for a message
	OpenID     string // hits only messages to this user; "" = to all
	TemplateID string // hits only messages of this template; "" = of all
	Times      int    // so many calls are hit; 0 = all until Mend

	Delay   time.Duration // how long to wait at first, until Mend or Stop at most
	After   bool          // WeChat does its work before all this; false = after Delay, and not at all when one of the following is set
	Errcode int           // is answered
	Status  int           // is answered, with Body
	Body    string        // is answered as it is, with 200 when there is no Status
	Drop    bool          // the connection is reset without an answer
}

// wechatFault is one that InjectFault added.
type wechatFault struct {
	WeChatFault
	mended <-chan struct{}
}

// InjectFault has calls go wrong from now on, where no earlier fault hits them.
func (w *WeChat) InjectFault(f WeChatFault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, wechatFault{f, w.mended})
}

// ClearFaults ends all faults. Calls that are being delayed go on.
func (w *WeChat) ClearFaults() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = nil
	close(w.mended)
	w.mended = make(chan struct{})
}

// take gives the first fault that hits, the zero one when none does. The caller
// holds w.mu.
func (w *WeChat) take(hits func(wechatFault) bool) wechatFault {
	i := slices.IndexFunc(w.faults, hits)
	if i < 0 {
		return wechatFault{}
	}
	f := w.faults[i]
	switch f.Times {
	case 0:
	case 1:
		w.faults = slices.Delete(w.faults, i, i+1)
	default:
		w.faults[i].Times--
	}
	return f
}

func (f wechatFault) hits(s *WeChatSend) bool {
	return !f.Tokens && (f.OpenID == "" || f.OpenID == s.OpenID) && (f.TemplateID == "" || f.TemplateID == s.TemplateID)
}

// perform does WeChat's work, told whether to really do it or only to record the
// call, and answers. What work records is there before the answer is.
func (w *WeChat) perform(rw http.ResponseWriter, f wechatFault, work func(really bool) (answer any)) {
	if !f.After {
		w.wait(f)
	}
	answer := work(f.After || !f.spoils())
	if f.After {
		w.wait(f)
	}
	switch {
	case f.Drop:
		reset(rw)
	case f.Status != 0 || f.Body != "":
		rw.WriteHeader(cmp.Or(f.Status, http.StatusOK))
		_, _ = io.WriteString(rw, f.Body)
	case f.Errcode != 0:
		answerWeChat(rw, wechatRefusal{f.Errcode, "scripted"})
	default:
		answerWeChat(rw, answer)
	}
}

// spoils tells whether the answer is not WeChat's own.
func (f wechatFault) spoils() bool { return f.Drop || f.Status != 0 || f.Body != "" || f.Errcode != 0 }

func (w *WeChat) wait(f wechatFault) {
	if f.Delay == 0 {
		return
	}
	timer := time.NewTimer(f.Delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-f.mended:
	case <-w.stop:
	}
}

// reset closes the connection of a call in the way that a crash does.
func reset(rw http.ResponseWriter) {
	conn, _, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // closes it too
	}
	if tcp, ok := conn.(interface{ SetLinger(int) error }); ok {
		_ = tcp.SetLinger(0)
	}
	conn.Close()
}

// String says what was done to a call, "" for nothing.
func (f wechatFault) String() string {
	var said []string
	if f.Delay > 0 {
		said = append(said, fmt.Sprintf("delayed for %s", f.Delay))
	}
	switch {
	case f.Drop:
		said = append(said, "not answered")
	case f.Status != 0 || f.Body != "":
		said = append(said, fmt.Sprintf("answered %d %q", cmp.Or(f.Status, http.StatusOK), f.Body))
	case f.Errcode != 0:
		said = append(said, fmt.Sprintf("answered errcode %d", f.Errcode))
	}
	return strings.Join(said, ", ")
}
