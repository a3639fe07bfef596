package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sendonce/sendonce/shared/api"
)

// maxTries is how often one call is made at most. The pauses between them add up to
// twenty seconds, twice what the gateway waits for a function.
const maxTries = 10

// tally counts the calls of one function.
type tally struct {
	calls    atomic.Int64
	refused  atomic.Int64 // answers of 500 and above
	broken   atomic.Int64 // calls without an answer
	repeated atomic.Int64 // calls that succeeded when they were repeated
}

// load calls functions through the gateway, and enters in its ledger what it was answered.
type load struct {
	number  int // of this load in the run
	client  *api.Client
	tallies map[string]*tally
	ledger
}

// called are the functions that a load calls.
var called = []string{"submit", "claim", "report", "subscribe", "messages", "stream", "webhooks", "admin"}

func newLoad(client *api.Client, number int) *load {
	l := &load{number: number, tallies: map[string]*tally{}, ledger: newLedger()}
	counted := *client
	httpClient := *client.HTTP
	httpClient.Transport = countingTransport{httpClient.Transport}
	counted.HTTP, counted.Tries = &httpClient, maxTries
	l.client = &counted
	for _, name := range called {
		l.tallies[name] = &tally{}
	}
	return l
}

// countingTransport counts the failures of the call that a request belongs to.
type countingTransport struct{ next http.RoundTripper }

type attempts struct {
	tally  *tally
	failed atomic.Int64
}

type attemptsKey struct{}

// RoundTrip sends r and counts a failure.
func (c countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := c.next.RoundTrip(r)
	a, counted := r.Context().Value(attemptsKey{}).(*attempts)
	switch {
	case !counted || r.Context().Err() != nil:
	case err != nil:
		a.tally.broken.Add(1)
		a.failed.Add(1)
	case res.StatusCode >= http.StatusInternalServerError:
		a.tally.refused.Add(1)
		a.failed.Add(1)
	}
	return res, err
}

// call makes one call of a function and counts it.
func (l *load) call(ctx context.Context, function string, do func(context.Context) error) {
	a := &attempts{tally: l.tallies[function]}
	err := do(context.WithValue(ctx, attemptsKey{}, a))
	a.tally.calls.Add(1)
	if err == nil && a.failed.Load() > 0 {
		a.tally.repeated.Add(1)
	}
	if err != nil && ctx.Err() == nil {
		l.fail(fmt.Errorf("%s: %w (%s)", function, err, time.Now().Format(time.TimeOnly)))
	}
}

// sums adds up the counters of all functions.
func (l *load) sums() (refused, broken, repeated int64) {
	for _, t := range l.tallies {
		refused, broken, repeated = refused+t.refused.Load(), broken+t.broken.Load(), repeated+t.repeated.Load()
	}
	return refused, broken, repeated
}

// goesOn waits until calls of every function have succeeded since.
func (l *load) goesOn(ctx context.Context) error {
	before := map[string]int64{}
	for name, t := range l.tallies {
		before[name] = t.calls.Load()
	}
	return until(ctx, waitLimit, func(context.Context) error {
		if err := l.failed(); err != nil {
			return err
		}
		for name, t := range l.tallies {
			if name != "stream" && t.calls.Load() < before[name]+2 { // whose one call lasts
				return fmt.Errorf("no call of %s succeeds", name)
			}
		}
		return nil
	})
}

// around runs the load while do does its work. Then it submits no more, and waits
// until everything that was submitted is done.
func (l *load) around(ctx context.Context, do func(context.Context) error, done func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	stopSubmitting, stopWorking := make(chan struct{}), make(chan struct{})
	var submitting, working, listening sync.WaitGroup
	defer func() {
		cancel()
		submitting.Wait()
		working.Wait()
		listening.Wait()
	}()
	for who := range 3 {
		submitting.Go(func() { l.submit(ctx, stopSubmitting, who) })
		working.Go(func() { l.claim(ctx, stopWorking, who) })
	}
	for who := range 2 {
		submitting.Go(func() { l.sendMessages(ctx, stopSubmitting, who) })
	}
	submitting.Go(func() { l.subscribe(ctx, stopSubmitting) })
	working.Go(func() { l.query(ctx, stopWorking) })
	listening.Go(func() { l.listen(ctx) })
	if err := l.goesOn(ctx); err != nil {
		return err
	}
	if err := do(ctx); err != nil {
		return err
	}
	close(stopSubmitting)
	submitting.Wait()
	err := until(ctx, waitLimit, done)
	close(stopWorking)
	if err != nil {
		return err
	}
	working.Wait()
	return nil
}

// every calls do with 0, 1, 2 ... until stop is closed. It ends the call of do that
// has begun, unless ctx ends too.
func every(ctx context.Context, stop <-chan struct{}, pause time.Duration, do func(n int)) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-tick.C:
			do(n)
		case <-stop:
			return
		case <-ctx.Done():
			return
		}
	}
}

// submit submits tasks, some of them with a time of their own, and some twice.
func (l *load) submit(ctx context.Context, stop <-chan struct{}, who int) {
	every(ctx, stop, 20*time.Millisecond, func(n int) {
		key := fmt.Sprintf("load-%d-%d-%d", l.number, who, n)
		r := api.SendRequest{PhoneNumber: "13800138000", Content: key, IdempotencyKey: key, OnUnknown: "resend"}
		if n%10 == 1 {
			soon := time.Now().Add(time.Second).Truncate(time.Second)
			r.SendAt = &soon
		}
		for range 1 + n%10/9 {
			l.call(ctx, "submit", func(ctx context.Context) error {
				sent, err := l.client.Send(ctx, r)
				if err != nil {
					return err
				}
				return l.submitted(r, sent.TaskID)
			})
		}
	})
}

// leaseSeconds is longer than a killed service is away, and short enough to wait for
// the tasks of a claim whose answer was lost.
const leaseSeconds = 20

// claim claims tasks and reports them, one at a time or all at once.
func (l *load) claim(ctx context.Context, stop <-chan struct{}, who int) {
	app := fmt.Sprint("phone-", who)
	every(ctx, stop, time.Millisecond, func(n int) {
		var tasks []api.ClaimedTask
		l.call(ctx, "claim", func(ctx context.Context) (err error) {
			// The client repeats no claim whose answer was lost; a sender may.
			for range maxTries {
				tasks, err = l.client.Claim(ctx, api.ClaimRequest{AppID: app, Limit: new(20), Wait: new(2), LeaseSeconds: new(leaseSeconds)})
				if !repeatable(err) || ctx.Err() != nil {
					return err
				}
				time.Sleep(time.Second)
			}
			return err
		})
		var reports []api.ReportRequest
		for _, t := range tasks {
			l.claimed(t)
			reports = append(reports, api.ReportRequest{TaskID: t.TaskID, AppID: app, ClaimID: t.ClaimID, Status: new(2)})
		}
		if n%2 == 0 {
			l.reportTogether(ctx, app, reports)
			return
		}
		for _, r := range reports {
			l.call(ctx, "report", func(ctx context.Context) error {
				_, err := l.client.Report(ctx, r)
				if err == nil {
					l.reported(r.TaskID)
				}
				return err
			})
		}
	})
}

// repeatable says whether a repeat of a claim may help.
func repeatable(err error) bool {
	var refused *api.Error
	return err != nil && (!errors.As(err, &refused) || refused.Status >= http.StatusInternalServerError)
}

func (l *load) reportTogether(ctx context.Context, app string, reports []api.ReportRequest) {
	if len(reports) == 0 {
		return
	}
	for i := range reports {
		reports[i].AppID = "" // given once for all
	}
	l.call(ctx, "report", func(ctx context.Context) error {
		results, err := l.client.ReportBatch(ctx, app, reports)
		for i, r := range results {
			if r.Err != nil {
				return fmt.Errorf("%s: %w", reports[i].TaskID, r.Err)
			}
			l.reported(reports[i].TaskID)
		}
		return err
	})
}

// listener is the user whom messages of this load are sent to.
func (l *load) listener() string { return fmt.Sprint("bob-", l.number) }

// sendMessages submits messages; every second one is answered before it is saved.
func (l *load) sendMessages(ctx context.Context, stop <-chan struct{}, who int) {
	every(ctx, stop, 50*time.Millisecond, func(n int) {
		id := fmt.Sprintf("message-%d-%d-%d", l.number, who, n)
		l.call(ctx, "messages", func(ctx context.Context) error {
			_, err := l.client.SubmitMessage(ctx, api.MessageRequest{From: fmt.Sprint("ann-", who), ClientMsgID: id, To: "user:" + l.listener(),
				Data: api.JSON(`"` + id + `"`), Ack: []string{"saved", "accepted"}[n%2]})
			if err == nil {
				l.messageSent(id)
			}
			return err
		})
	})
}

// listen receives the messages.
func (l *load) listen(ctx context.Context) {
	l.call(ctx, "stream", func(ctx context.Context) error {
		for event, err := range l.client.Stream(ctx, l.listener(), api.StreamRequest{After: new(int64(0))}) {
			if err != nil {
				return err
			}
			if event.Kind != api.StreamMessage {
				continue
			}
			var message struct {
				Data any `json:"data"`
			}
			if err := json.Unmarshal([]byte(event.Data), &message); err != nil {
				return err
			}
			l.messageReceived(fmt.Sprint(message.Data))
		}
		return nil
	})
}

// subscribe orders subscribe messages.
func (l *load) subscribe(ctx context.Context, stop <-chan struct{}) {
	every(ctx, stop, 100*time.Millisecond, func(n int) {
		data := fmt.Sprintf(`{"thing1":{"value":"booking %d-%d"}}`, l.number, n)
		l.call(ctx, "subscribe", func(ctx context.Context) error {
			_, err := l.client.Subscribe(ctx, api.SubscribeRequest{
				TemplateID: "tmpl-1", TemplateType: "BOOKING_CONFIRM", BusinessType: "course_booking", BusinessID: api.NumberOf(uint64(l.number*1_000_000 + n)),
				ReceiverUserID: "9", ReceiverOpenID: "oABC123", MessageData: json.RawMessage(data),
			})
			if err == nil {
				l.subscribed(data)
			}
			return err
		})
	})
}

// query reads numbers and lists.
func (l *load) query(ctx context.Context, stop <-chan struct{}) {
	every(ctx, stop, 100*time.Millisecond, func(int) {
		l.call(ctx, "admin", func(ctx context.Context) error {
			_, err := l.client.Statistics(ctx)
			return err
		})
		l.call(ctx, "webhooks", func(ctx context.Context) error {
			_, err := l.client.Endpoints(ctx, api.EndpointsRequest{})
			return err
		})
	})
}

// summary has a line for each function.
func (l *load) summary() (lines []string) {
	for name, t := range l.tallies {
		if t.calls.Load() > 0 {
			lines = append(lines, fmt.Sprintf("%-9s %6d calls: %2d answers of 5xx, %2d broken connections, %2d calls succeeded by a repeat", name,
				t.calls.Load(), t.refused.Load(), t.broken.Load(), t.repeated.Load()))
		}
	}
	slices.Sort(lines)
	return lines
}
