package sandbox

import (
	"cmp"
	"io"
	"net"
	"net/http"
	"slices"
	"time"
)

// InjectFault applies f to the later calls that f selects. If several faults select a call, the one injected first
// applies.
func (w *WeChat) InjectFault(f WeChatFault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, f)
}

// ClearFaults removes all faults and ends all delays.
func (w *WeChat) ClearFaults() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = nil
	close(w.cleared)
	w.cleared = make(chan struct{})
}

// nextFault returns the first fault that matches, and removes the fault after its Times. It returns the zero fault if
// none matches. ClearFaults closes cleared. The caller holds w.mu.
func (w *WeChat) nextFault(matches func(WeChatFault) bool) (f WeChatFault, cleared <-chan struct{}) {
	i := slices.IndexFunc(w.faults, matches)
	if i < 0 {
		return WeChatFault{}, w.cleared
	}
	f = w.faults[i]
	switch f.Times {
	case 0: // no limit
	case 1:
		w.faults = slices.Delete(w.faults, i, i+1)
	default:
		w.faults[i].Times--
	}
	return f, w.cleared
}

// matchesSend reports whether f selects the call s.
func (f WeChatFault) matchesSend(s *WeChatSend) bool {
	return !f.TokenCalls && (f.OpenID == "" || f.OpenID == s.OpenID)
}

// serveWithFault calls respond once, and writes the response of f, or that of respond if f has none. If execute is
// true, respond does what WeChat does, and returns WeChat's response. If execute is false, respond may only record the
// call.
func (w *WeChat) serveWithFault(rw http.ResponseWriter, f WeChatFault, cleared <-chan struct{}, respond func(execute bool) (response any)) {
	if !f.DeliverFirst {
		w.wait(f, cleared)
	}
	response := respond(f.DeliverFirst || !f.replacesResponse())
	if f.DeliverFirst {
		w.wait(f, cleared)
	}
	switch {
	case f.Drop:
		reset(rw)
	case f.Status != 0 || f.Body != "":
		rw.WriteHeader(cmp.Or(f.Status, http.StatusOK))
		_, _ = io.WriteString(rw, f.Body)
	case f.Errcode != 0:
		writeWeChatResponse(rw, wechatResult{f.Errcode, "injected fault"})
	default:
		writeWeChatResponse(rw, response)
	}
}

// wait waits for the delay of f, which ClearFaults and Stop end early.
func (w *WeChat) wait(f WeChatFault, cleared <-chan struct{}) {
	if f.Delay == 0 {
		return
	}
	timer := time.NewTimer(f.Delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-cleared:
	case <-w.stop:
	}
}

// reset closes the connection with a TCP reset: the client gets an error and no response.
func reset(rw http.ResponseWriter) {
	conn, _, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // also closes the connection
	}
	tcp := conn.(interface{ NetConn() net.Conn }).NetConn().(*net.TCPConn)
	_ = tcp.SetLinger(0)
	conn.Close()
}
