// Package gatewaytest holds a sender.Gateway to what its interface says.
//
//	func TestTheGatewayConforms(t *testing.T) {
//		gatewaytest.Run(t, func(t *testing.T) gatewaytest.Subject { … })
//	}
//
// Run it with the race detector.
package gatewaytest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sendonce/sendonce/shared/sender"
)

// Subject is a gateway whose provider takes every message.
type Subject struct {
	Gateway sender.Gateway

	// Sent tells how often the provider took a message.
	Sent func(m sender.Message) int

	// Stall makes the provider stop answering, for as long as the test lasts. nil =
	// it always answers at once.
	Stall func()
}

const (
	// soon is how late a gateway may notice that its ctx ended; half of what a
	// sender allows.
	soon      = 2500 * time.Millisecond
	workLimit = 30 * time.Second
	atOnce    = 32
)

// Run makes a fresh subject for each rule and tests it.
func Run(t *testing.T, subject func(t *testing.T) Subject) {
	for name, rule := range map[string]func(*testing.T, Subject){
		"a message is sent once":                                           sendsOnce,
		"many messages at once are each sent once":                         sendsAtOnce,
		"whatever a message says is sent as data":                          sendsAnything,
		"what begins after ctx has ended says no untruth":                  beginsTooLate,
		"ctx that ends at any instant makes no untruth":                    endsAnytime,
		"a provider that does not answer is waited for no longer than ctx": heedsContext,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rule(t, subject(t))
		})
	}
}

func message(n int) sender.Message {
	return sender.Message{
		TaskID: fmt.Sprintf("0198c0de-0000-7000-8000-%012d", n), ClaimID: int64(n) + 1, PhoneNumber: "+8613800138000", Content: "hello",
	}
}

func working(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), workLimit)
	t.Cleanup(cancel)
	return ctx
}

func sendsOnce(t *testing.T, s Subject) {
	s.mustSend(t, message(0))
}

func sendsAtOnce(t *testing.T, s Subject) {
	var all sync.WaitGroup
	for n := range atOnce {
		all.Go(func() { s.mustSend(t, message(n)) })
	}
	all.Wait()
}

func sendsAnything(t *testing.T, s Subject) {
	for n, content := range []string{
		"", " ", "您的验证码是 123456", "👍🏽 e\u0301", `"},{"to":"`, `\`, "{{.PhoneNumber}} {{", "%d %s %00", "a=1&b=2?#/../",
		"line\r\nX-Header: 1\r\n\r\n", "\x1b[2J\u202e", "</script><!-- ' -->", "not\xffUTF-8",
	} {
		m := message(n)
		m.Content = content
		s.mustSend(t, m)
	}
}

func (s Subject) mustSend(t *testing.T, m sender.Message) {
	t.Helper()
	if result := s.Gateway.Send(working(t), m); result.Outcome != sender.OK {
		t.Errorf("%q: the provider takes everything, but the result is %s %q %q", m.Content, result.Outcome, result.Code, result.Message)
	}
	if n := s.Sent(m); n != 1 {
		t.Errorf("%q: the provider took the message %d times", m.Content, n)
	}
}

func beginsTooLate(t *testing.T, s Subject) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.truthful(t, ctx, message(0))
}

func endsAnytime(t *testing.T, s Subject) {
	var all sync.WaitGroup
	for n := range 4 * atOnce {
		// From nothing to more than a call on this machine takes.
		limit := time.Duration(n) * 50 * time.Microsecond
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			s.truthful(t, ctx, message(n))
		})
	}
	all.Wait()
}

func heedsContext(t *testing.T, s Subject) {
	if s.Stall == nil {
		t.Skip("this provider always answers")
	}
	s.Stall()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	s.truthful(t, ctx, message(0))
}

// truthful sends with a ctx that ends, and compares the result with what the
// provider knows.
func (s Subject) truthful(t *testing.T, ctx context.Context, m sender.Message) {
	t.Helper()
	results := make(chan sender.Result, 1)
	go func() { results <- s.Gateway.Send(ctx, m) }()
	var result sender.Result
	select {
	case result = <-results:
	case <-after(ctx, soon):
		t.Errorf("Send did not return within %s of the end of its ctx", soon)
		return
	}
	sent := s.Sent(m)
	switch result.Outcome {
	case sender.OK:
		if sent != 1 {
			t.Errorf("the result is ok, and the provider took the message %d times", sent)
		}
	case sender.Unknown:
		if sent > 1 {
			t.Errorf("the provider took the message %d times", sent)
		}
	default:
		if sent != 0 {
			t.Errorf("the result is %s, which says that nothing was sent, and the provider took the message %d times", result.Outcome, sent)
		}
	}
}

// after is closed some time after ctx ends.
func after(ctx context.Context, d time.Duration) <-chan struct{} {
	late := make(chan struct{})
	context.AfterFunc(ctx, func() { time.AfterFunc(d, func() { close(late) }) })
	return late
}
