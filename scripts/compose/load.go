package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sendonce/sendonce/shared/api"
)

// tries is how often one call is made at most. The pauses between them add up to
// twenty seconds, twice what the gateway waits for a function.
const tries = 10

// tally is what befell the calls of one function.
type tally struct {
	calls   atomic.Int64
	refused atomic.Int64 // answers of 500 and above
	broken  atomic.Int64 // no answer
	cured   atomic.Int64 // calls that a repeat brought through
}

// load calls every function through the gateway until it is told to stop, and
// keeps what it was answered.
type load struct {
	client  *api.Client
	tallies map[string]*tally
	before  api.StatisticsResponse // when the load began

	mu       sync.Mutex
	failures []error                    // calls that no repeat cured, and answers that must not be
	sent     map[string]api.SendRequest // by key
	tasks    map[string]string          // of the submissions, by key
	claims   map[string][]api.ID        // of the tasks that senders were given
	reported map[string]int             // by task
	said     map[string]string          // server_msg_id by data
	heard    map[string]int             // data of the messages that came in
	told     map[string][]string        // webhook-ids by task
	ordered  map[string]api.ID          // subscribe messages
}

func newLoad(client *api.Client, functions []string) *load {
	l := &load{
		tallies: map[string]*tally{}, sent: map[string]api.SendRequest{}, tasks: map[string]string{}, claims: map[string][]api.ID{}, reported: map[string]int{},
		said: map[string]string{}, heard: map[string]int{}, told: map[string][]string{}, ordered: map[string]api.ID{},
	}
	counted := *client
	httpClient := *client.HTTP
	httpClient.Transport = counting{httpClient.Transport}
	counted.HTTP, counted.Tries = &httpClient, tries
	l.client = &counted
	for _, name := range functions {
		l.tallies[name] = &tally{}
	}
	return l
}

// counting counts for the call that a request belongs to.
type counting struct{ next http.RoundTripper }

type attempts struct {
	tally  *tally
	failed atomic.Int64
}

type attemptsKey struct{}

// RoundTrip passes r on and looks at the answer.
func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := c.next.RoundTrip(r)
	a, of := r.Context().Value(attemptsKey{}).(*attempts)
	switch {
	case !of || r.Context().Err() != nil:
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
func (l *load) call(ctx context.Context, function string, do func(context.Context) error) bool {
	a := &attempts{tally: l.tallies[function]}
	err := do(context.WithValue(ctx, attemptsKey{}, a))
	a.tally.calls.Add(1)
	if err == nil && a.failed.Load() > 0 {
		a.tally.cured.Add(1)
	}
	if err != nil && ctx.Err() == nil {
		l.fail("%s: %w (%s)", function, err, time.Now().Format(time.TimeOnly))
	}
	return err == nil
}

func (l *load) fail(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures = append(l.failures, fmt.Errorf(format, args...))
}

// seen gives all of a counter's sum, over all functions.
func (l *load) seen() (refused, broken, cured int64) {
	for _, t := range l.tallies {
		refused, broken, cured = refused+t.refused.Load(), broken+t.broken.Load(), cured+t.cured.Load()
	}
	return refused, broken, cured
}

// every calls do with 0, 1, 2 ... until it is told to stop. What has begun then is
// brought to its end, unless ctx ends too.
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

// submits sends tasks, some of them with a time of their own, and repeats some.
func (l *load) submits(ctx context.Context, stop <-chan struct{}, who int) {
	every(ctx, stop, 20*time.Millisecond, func(n int) {
		key := fmt.Sprintf("rolling-%d-%d", who, n)
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
				l.mu.Lock()
				defer l.mu.Unlock()
				if before := l.tasks[key]; before != "" && before != sent.TaskID {
					return fmt.Errorf("%s was answered %s and %s", key, before, sent.TaskID)
				}
				l.sent[key], l.tasks[key] = r, sent.TaskID
				return nil
			})
		}
	})
}

// sends claims tasks and reports them, one at a time or all at once.
func (l *load) sends(ctx context.Context, stop <-chan struct{}, who int) {
	app := fmt.Sprint("phone-", who)
	every(ctx, stop, time.Millisecond, func(n int) {
		var tasks []api.ClaimedTask
		l.call(ctx, "claim", func(ctx context.Context) (err error) {
			// The client repeats no claim whose answer was lost; a sender may.
			for range tries {
				tasks, err = l.client.Claim(ctx, api.ClaimRequest{AppID: app, Limit: new(20), Wait: new(2), LeaseSeconds: new(10)})
				if !curable(err) || ctx.Err() != nil {
					return err
				}
			}
			return err
		})
		var reports []api.ReportRequest
		l.mu.Lock()
		for _, t := range tasks {
			l.claims[t.TaskID] = append(l.claims[t.TaskID], t.ClaimID)
			reports = append(reports, api.ReportRequest{TaskID: t.TaskID, AppID: app, ClaimID: t.ClaimID, Status: new(2)})
		}
		l.mu.Unlock()
		l.reports(ctx, app, reports, n%2 == 0)
	})
}

// curable says whether a repeat may help.
func curable(err error) bool {
	var refused *api.Error
	return err != nil && (!errors.As(err, &refused) || refused.Status >= http.StatusInternalServerError)
}

func (l *load) reports(ctx context.Context, app string, reports []api.ReportRequest, together bool) {
	done := func(r api.ReportRequest) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.reported[r.TaskID]++
	}
	if !together {
		for _, r := range reports {
			l.call(ctx, "report", func(ctx context.Context) error {
				_, err := l.client.Report(ctx, r)
				if err == nil {
					done(r)
				}
				return err
			})
		}
		return
	}
	if len(reports) == 0 {
		return
	}
	for i := range reports {
		reports[i].AppID = "" // said once
	}
	l.call(ctx, "report", func(ctx context.Context) error {
		results, err := l.client.ReportBatch(ctx, app, reports)
		for i, r := range results {
			if r.Err != nil {
				return fmt.Errorf("%s: %w", reports[i].TaskID, r.Err)
			}
			done(reports[i])
		}
		return err
	})
}

const listener = "bob"

// talks hands messages over, every second one to be answered before it is saved.
func (l *load) talks(ctx context.Context, stop <-chan struct{}, who int) {
	every(ctx, stop, 50*time.Millisecond, func(n int) {
		id := fmt.Sprintf("talk-%d-%d", who, n)
		l.call(ctx, "messages", func(ctx context.Context) error {
			ack, err := l.client.SubmitMessage(ctx, api.MessageRequest{From: fmt.Sprint("ann-", who), ClientMsgID: id, To: "user:" + listener,
				Data: api.JSON(`"` + id + `"`), Ack: []string{"saved", "accepted"}[n%2]})
			if err != nil {
				return err
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			l.said[id] = ack.ServerMsgID
			return nil
		})
	})
}

// listens hears what is said.
func (l *load) listens(ctx context.Context) {
	l.call(ctx, "stream", func(ctx context.Context) error {
		for event, err := range l.client.Stream(ctx, listener, api.StreamRequest{After: new(int64(0))}) {
			if err != nil {
				return err
			}
			var message struct {
				Data any `json:"data"`
			}
			if event.Kind != api.StreamMessage {
				continue
			}
			if err := json.Unmarshal([]byte(event.Data), &message); err != nil {
				return err
			}
			l.mu.Lock()
			l.heard[fmt.Sprint(message.Data)]++
			l.mu.Unlock()
		}
		return nil
	})
}

// orders subscribe messages.
func (l *load) orders(ctx context.Context, stop <-chan struct{}) {
	every(ctx, stop, 100*time.Millisecond, func(n int) {
		l.call(ctx, "subscribe", func(ctx context.Context) error {
			data := fmt.Sprintf(`{"thing1":{"value":"booking %d"}}`, n)
			r, err := l.client.Subscribe(ctx, api.SubscribeRequest{
				TemplateID: "tmpl-1", TemplateType: "BOOKING_CONFIRM", BusinessType: "course_booking", BusinessID: api.NumberOf(uint64(n + 1)),
				ReceiverUserID: "9", ReceiverOpenID: "oABC123", MessageData: json.RawMessage(data),
			})
			if err != nil {
				return err
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			l.ordered[data] = r.ID
			return nil
		})
	})
}

// watches asks for numbers and lists.
func (l *load) watches(ctx context.Context, stop <-chan struct{}) {
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

// hook is the receiver of webhooks.
func (l *load) hook(w http.ResponseWriter, r *http.Request) {
	var event struct {
		Data struct {
			TaskID string `json:"task_id"`
		} `json:"data"`
	}
	if err := json.NewDecoder(r.Body).Decode(&event); err != nil || event.Data.TaskID == "" {
		l.fail("a webhook is not understood: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told[event.Data.TaskID] = append(l.told[event.Data.TaskID], r.Header.Get("webhook-id"))
}
