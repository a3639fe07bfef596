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

// WeChatFault selects calls of a fake WeChat and how they fail:
//
//	{Errcode: 45011, Times: 3}          three calls are refused
//	{Drop: true}                        no call is answered, nothing is delivered
//	{Drop: true, After: true}           all is delivered, no call is answered
//	{Status: 502, After: true}          delivered, and then an error of a gateway
//	{Body: "<html>", After: true}       delivered, and then no JSON
//	{Delay: time.Hour}                  neither delivered nor answered until ClearFaults
//	{Delay: time.Hour, After: true}     delivered, but not answered until ClearFaults
type WeChatFault struct {
	Tokens     bool   // calls for an access token; false = those to send a message
	OpenID     string // only messages to this user; "" = all
	TemplateID string // only messages of this template; "" = all
	Times      int    // how many calls fail; 0 = all until ClearFaults

	Delay   time.Duration // before the rest, until ClearFaults or Stop at most
	After   bool          // deliver first; false = after Delay, and not at all if one of the following is set
	Errcode int           // of the answer
	Status  int           // of the answer, with Body
	Body    string        // of the answer; its status is 200 without Status
	Drop    bool          // reset the connection without an answer
}

// wechatFault is one that InjectFault added.
type wechatFault struct {
	WeChatFault
	cleared <-chan struct{}
}

// InjectFault makes calls fail from now on, if no earlier fault selects them.
func (w *WeChat) InjectFault(f WeChatFault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, wechatFault{f, w.cleared})
}

// ClearFaults removes all faults and ends delays.
func (w *WeChat) ClearFaults() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = nil
	close(w.cleared)
	w.cleared = make(chan struct{})
}

// takeFault returns the first fault that matches and counts it, or the zero fault. The
// caller has locked w.mu.
func (w *WeChat) takeFault(hits func(wechatFault) bool) wechatFault {
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

func (f wechatFault) matches(s *WeChatSend) bool {
	return !f.Tokens && (f.OpenID == "" || f.OpenID == s.OpenID) && (f.TemplateID == "" || f.TemplateID == s.TemplateID)
}

// handle calls work and answers. work records the call; with really it also does what
// WeChat would do, and returns the answer.
func (w *WeChat) handle(rw http.ResponseWriter, f wechatFault, work func(really bool) (answer any)) {
	if !f.After {
		w.wait(f)
	}
	answer := work(f.After || !f.replacesAnswer())
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

// replacesAnswer reports whether the answer is not WeChat's own.
func (f wechatFault) replacesAnswer() bool {
	return f.Drop || f.Status != 0 || f.Body != "" || f.Errcode != 0
}

func (w *WeChat) wait(f wechatFault) {
	if f.Delay == 0 {
		return
	}
	timer := time.NewTimer(f.Delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-f.cleared:
	case <-w.stop:
	}
}

// reset closes the connection as a crash does.
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

// String describes the fault, "" for none.
func (f wechatFault) String() string {
	var parts []string
	if f.Delay > 0 {
		parts = append(parts, fmt.Sprintf("delayed for %s", f.Delay))
	}
	switch {
	case f.Drop:
		parts = append(parts, "not answered")
	case f.Status != 0 || f.Body != "":
		parts = append(parts, fmt.Sprintf("answered %d %q", cmp.Or(f.Status, http.StatusOK), f.Body))
	case f.Errcode != 0:
		parts = append(parts, fmt.Sprintf("answered errcode %d", f.Errcode))
	}
	return strings.Join(parts, ", ")
}
