// Package gatewaytest tests that an implementation of sender.Gateway follows the rules of the interface.
//
//	func TestTheGatewayConforms(t *testing.T) {
//		gatewaytest.Run(t, func(t *testing.T) gatewaytest.Fixture { … })
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

// Fixture is a gateway to test. Its provider accepts every message.
type Fixture struct {
	Gateway sender.Gateway

	// Sent returns how often the provider accepted a message.
	Sent func(m sender.Message) int

	// Stall makes the provider stop responding; it may still accept messages. nil = the provider always responds.
	Stall func()
}

const (
	returnTime  = 2500 * time.Millisecond // how long Send may take to return after its ctx has ended: half of the 5 s of sender.Gateway
	sendTimeout = 30 * time.Second        // for a Send that nothing else cancels
	concurrent  = 32                      // messages at once
)

// The rules, which are the names of Run's subtests.
const (
	SentOnce         = "a message is sent once"
	SentConcurrently = "concurrent messages are each sent once"
	AnyContent       = "a message with any content is sent once"
	CancelledBefore  = "the outcome is correct if ctx has ended before Send"
	CancelledDuring  = "the outcome is correct if ctx ends during Send"
	NoResponse       = "Send returns when ctx ends without a response"
)

// Run tests each rule with a new fixture.
func Run(t *testing.T, newFixture func(t *testing.T) Fixture) {
	for name, rule := range map[string]func(*testing.T, Fixture){
		SentOnce:         testSentOnce,
		SentConcurrently: testSentConcurrently,
		AnyContent:       testAnyContent,
		CancelledBefore:  testCancelledBefore,
		CancelledDuring:  testCancelledDuring,
		NoResponse:       testNoResponse,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rule(t, newFixture(t))
		})
	}
}

func message(n int) sender.Message {
	return sender.Message{
		TaskID: fmt.Sprintf("0198c0de-0000-7000-8000-%012d", n), ClaimID: int64(n) + 1, PhoneNumber: "+8613800138000", Content: "hello",
	}
}

func testSentOnce(t *testing.T, f Fixture) {
	f.mustSend(t, message(0))
}

func testSentConcurrently(t *testing.T, f Fixture) {
	var all sync.WaitGroup
	for n := range concurrent {
		all.Go(func() { f.mustSend(t, message(n)) })
	}
	all.Wait()
}

func testAnyContent(t *testing.T, f Fixture) {
	for n, content := range []string{
		"", " ", "您的验证码是 123456", "👍🏽 e\u0301", `"},{"to":"`, `\`, "{{.PhoneNumber}} {{", "%d %s %00", "a=1&b=2?#/../",
		"line\r\nX-Header: 1\r\n\r\n", "\x1b[2J\u202e", "</script><!-- ' -->", "not\xffUTF-8",
	} {
		m := message(n)
		m.Content = content
		f.mustSend(t, m)
	}
}

func (f Fixture) mustSend(t *testing.T, m sender.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), sendTimeout)
	defer cancel()
	if result := f.Gateway.Send(ctx, m); result.Outcome != sender.OK {
		t.Errorf("%q: the provider accepts everything, but the result is %s %q %q", m.Content, result.Outcome, result.Code, result.Message)
	}
	if n := f.Sent(m); n != 1 {
		t.Errorf("%q: the provider accepted the message %d times", m.Content, n)
	}
}

func testCancelledBefore(t *testing.T, f Fixture) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.requireCorrectOutcome(t, ctx, message(0))
}

func testCancelledDuring(t *testing.T, f Fixture) {
	var all sync.WaitGroup
	for n := range 4 * concurrent {
		// From 0 to 6 ms, so that ctx ends before, during and after the call of the provider.
		limit := time.Duration(n) * 50 * time.Microsecond
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			f.requireCorrectOutcome(t, ctx, message(n))
		})
	}
	all.Wait()
}

func testNoResponse(t *testing.T, f Fixture) {
	if f.Stall == nil {
		t.Skip("this provider always responds")
	}
	f.Stall()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	f.requireCorrectOutcome(t, ctx, message(0))
}

// requireCorrectOutcome sends with a ctx that ends, and requires an outcome that does not contradict f.Sent: ok if the
// message was sent once, unknown if it was sent at most once, any other outcome if it was not sent.
func (f Fixture) requireCorrectOutcome(t *testing.T, ctx context.Context, m sender.Message) {
	t.Helper()
	results := make(chan sender.Result, 1)
	go func() { results <- f.Gateway.Send(ctx, m) }()
	var result sender.Result
	select {
	case result = <-results:
	case <-after(ctx, returnTime):
		t.Errorf("Send did not return within %s of the end of its ctx", returnTime)
		return
	}
	sent := f.Sent(m)
	switch result.Outcome {
	case sender.OK:
		if sent != 1 {
			t.Errorf("the outcome is ok, but the provider accepted the message %d times", sent)
		}
	case sender.Unknown:
		if sent > 1 {
			t.Errorf("the provider accepted the message %d times", sent)
		}
	default:
		if sent != 0 {
			t.Errorf("the outcome is %s, which means not sent, but the provider accepted the message %d times", result.Outcome, sent)
		}
	}
}

// after returns a channel that is closed a time d after ctx ends.
func after(ctx context.Context, d time.Duration) <-chan struct{} {
	late := make(chan struct{})
	context.AfterFunc(ctx, func() { time.AfterFunc(d, func() { close(late) }) })
	return late
}
