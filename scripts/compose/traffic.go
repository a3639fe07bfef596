package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox/load"
)

// maxTries is how often one call is tried, including the first try. The pauses between the tries add up to about 20 s,
// twice the time for which the gateway tries to connect to a function.
const maxTries = 10

// tally counts the calls of one function.
type tally struct {
	calls        atomic.Int64 // calls that have ended, successfully or not; each may have had several tries
	serverErrors atomic.Int64 // tries with a response of 500 or above
	broken       atomic.Int64 // tries without a response
	repeated     atomic.Int64 // calls that succeeded after a failed try
}

// traffic calls functions through the gateway, and records the responses in its ledger.
type traffic struct {
	number  int // of this traffic in the run: a part of keys and names, so that no traffic repeats those of another
	client  *api.Client
	tallies map[string]*tally
	*ledger
}

// calledFunctions are the functions that the traffic calls.
var calledFunctions = []string{"submit", "claim", "report", "subscribe", "messages", "stream", "webhooks", "admin"}

func newTraffic(client *api.Client, number int) *traffic {
	t := &traffic{number: number, tallies: map[string]*tally{}, ledger: newLedger()}
	counted := *client
	httpClient := *client.HTTP
	httpClient.Transport = countingTransport{httpClient.Transport}
	counted.HTTP, counted.Tries = &httpClient, maxTries
	t.client = &counted
	for _, name := range calledFunctions {
		t.tallies[name] = &tally{}
	}
	return t
}

// countingTransport counts each failed try in the failedTries of its call.
type countingTransport struct{ next http.RoundTripper }

// failedTries counts the failed tries of one call.
type failedTries struct {
	tally *tally // of the function
	count atomic.Int64
}

type failedTriesKey struct{}

// RoundTrip sends r. Unless the context of r has ended, it counts r as failed if there is no response, or one of 500 or
// above.
func (c countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := c.next.RoundTrip(r)
	f, counted := r.Context().Value(failedTriesKey{}).(*failedTries)
	switch {
	case !counted || r.Context().Err() != nil:
	case err != nil:
		f.tally.broken.Add(1)
		f.count.Add(1)
	case res.StatusCode >= http.StatusInternalServerError:
		f.tally.serverErrors.Add(1)
		f.count.Add(1)
	}
	return res, err
}

// call makes one call of a function with do, counts it, and records an error of do as a failure.
func (t *traffic) call(ctx context.Context, function string, do func(context.Context) error) {
	f := &failedTries{tally: t.tallies[function]}
	err := do(context.WithValue(ctx, failedTriesKey{}, f))
	f.tally.calls.Add(1)
	if err == nil && f.count.Load() > 0 {
		f.tally.repeated.Add(1)
	}
	if err != nil && ctx.Err() == nil {
		t.fail(fmt.Errorf("%s: %w (%s)", function, err, time.Now().Format(time.TimeOnly)))
	}
}

// sums are the counters of all functions together.
type sums struct{ serverErrors, broken, repeated int64 }

func (t *traffic) sums() (all sums) {
	for _, n := range t.tallies {
		all.serverErrors += n.serverErrors.Load()
		all.broken += n.broken.Load()
		all.repeated += n.repeated.Load()
	}
	return all
}

// waitForCalls waits until two more calls of each function but stream have ended: the first of the two may have begun
// earlier. It returns an error if a call has failed.
func (t *traffic) waitForCalls(ctx context.Context) error {
	before := map[string]int64{}
	for name, n := range t.tallies {
		before[name] = n.calls.Load()
	}
	return waitUntil(ctx, func(context.Context) error {
		if err := t.firstFailures(); err != nil {
			return err
		}
		for name, n := range t.tallies {
			if name != "stream" && n.calls.Load() < before[name]+2 { // the only call of stream does not end
				return fmt.Errorf("fewer than two calls of %s have ended", name)
			}
		}
		return nil
	})
}

// callDuring makes calls while do runs. Then it stops submitting, and waits until everything that was submitted is done,
// which is when done returns no error.
func (t *traffic) callDuring(ctx context.Context, do func(context.Context) error, done func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	submitting, working := load.New(ctx), load.New(ctx)
	var receiving sync.WaitGroup
	defer func() {
		cancel()
		submitting.Stop()
		working.Stop()
		receiving.Wait()
	}()
	for who := range 3 {
		t.submit(submitting, who)
		t.claim(working, who)
	}
	for who := range 2 {
		t.sendMessages(submitting, who)
	}
	t.subscribe(submitting)
	t.query(working)
	receiving.Go(func() { t.receive(ctx) })
	if err := t.waitForCalls(ctx); err != nil {
		return err
	}
	if err := do(ctx); err != nil {
		return err
	}
	submitting.Stop()
	if err := waitUntil(ctx, done); err != nil {
		return err
	}
	working.Stop()
	return nil
}

// start calls do at intervals with n = 0, 1, 2 … until g is stopped. do itself records failures.
func start(g *load.Generator, kind string, interval time.Duration, do func(ctx context.Context, n int)) {
	n := -1
	g.Start(kind, interval, func(ctx context.Context) error {
		n++
		do(ctx, n)
		return nil
	})
}

// submit submits tasks: one of ten with a send time, and another one of ten twice.
func (t *traffic) submit(g *load.Generator, who int) {
	start(g, "submit", 20*time.Millisecond, func(ctx context.Context, n int) {
		key := fmt.Sprintf("task-%d-%d-%d", t.number, who, n)
		r := api.SendRequest{PhoneNumber: "13800138000", Content: key, IdempotencyKey: key, OnUnknown: "resend"}
		if n%10 == 1 {
			soon := time.Now().Add(time.Second).Truncate(time.Second)
			r.SendAt = &soon
		}
		for range 1 + n%10/9 { // twice if n%10 is 9
			t.call(ctx, "submit", func(ctx context.Context) error {
				sent, err := t.client.Send(ctx, r)
				if err != nil {
					return err
				}
				return t.submitted(r, sent.TaskID)
			})
		}
	})
}

// leaseSeconds is longer than the restart of a killed service takes. It is less than waitTimeout, so that the tasks of a
// claim whose response was lost can be claimed again in time.
const leaseSeconds = 20

// claim claims tasks and reports them: those of every second claim in one call, all others one by one.
func (t *traffic) claim(g *load.Generator, who int) {
	app := fmt.Sprint("phone-", who)
	start(g, "claim", time.Millisecond, func(ctx context.Context, n int) {
		var tasks []api.ClaimedTask
		t.call(ctx, "claim", func(ctx context.Context) (err error) {
			// api.Client does not repeat a claim that got no response. A sender may repeat it.
			for range maxTries {
				tasks, err = t.client.Claim(ctx, api.ClaimRequest{AppID: app, Limit: new(20), Wait: new(2), LeaseSeconds: new(leaseSeconds)})
				if !repeatable(err) || ctx.Err() != nil {
					return err
				}
				time.Sleep(time.Second)
			}
			return err
		})
		var reports []api.ReportRequest
		for _, task := range tasks {
			t.Claimed(task.TaskID, task.ClaimID.String())
			reports = append(reports, api.ReportRequest{TaskID: task.TaskID, AppID: app, ClaimID: task.ClaimID, Status: new(2)}) // 2 = sent
		}
		if n%2 == 0 {
			t.reportTogether(ctx, app, reports)
			return
		}
		for _, r := range reports {
			t.call(ctx, "report", func(ctx context.Context) error {
				_, err := t.client.Report(ctx, r)
				if err == nil {
					t.Reported(r.TaskID)
				}
				return err
			})
		}
	})
}

// repeatable reports whether err is a failure of a claim after which a repeat may succeed.
func repeatable(err error) bool {
	var refused *api.Error
	return err != nil && (!errors.As(err, &refused) || refused.Status >= http.StatusInternalServerError)
}

// reportTogether sends all reports in one call.
func (t *traffic) reportTogether(ctx context.Context, app string, reports []api.ReportRequest) {
	if len(reports) == 0 {
		return
	}
	for i := range reports {
		reports[i].AppID = "" // ReportBatch has it once for all reports
	}
	t.call(ctx, "report", func(ctx context.Context) error {
		results, err := t.client.ReportBatch(ctx, app, reports)
		for i, r := range results {
			if r.Err != nil {
				return fmt.Errorf("%s: %w", reports[i].TaskID, r.Err)
			}
			t.Reported(reports[i].TaskID)
		}
		return err
	})
}

// receiver returns the user to whom the messages of t are sent.
func (t *traffic) receiver() string { return fmt.Sprint("bob-", t.number) }

// sendMessages submits messages, which request in turn the acknowledgements "saved" and "accepted".
func (t *traffic) sendMessages(g *load.Generator, who int) {
	start(g, "messages", 50*time.Millisecond, func(ctx context.Context, n int) {
		m := load.Message{Sender: fmt.Sprintf("ann-%d-%d", t.number, who), N: n + 1}
		t.call(ctx, "messages", func(ctx context.Context) error {
			data, err := json.Marshal(m)
			if err != nil {
				return err
			}
			ack, err := t.client.SubmitMessage(ctx, api.MessageRequest{From: m.Sender, ClientMsgID: strconv.Itoa(m.N), To: "user:" + t.receiver(),
				Data: data, Ack: []string{"saved", "accepted"}[n%2]})
			if err == nil {
				t.Sent(m, load.Sent{ID: ack.ServerMsgID, Ack: ack.Ack})
			}
			return err
		})
	})
}

// receive reads the messages from the stream of the receiver.
func (t *traffic) receive(ctx context.Context) {
	t.call(ctx, "stream", func(ctx context.Context) error {
		for event, err := range t.client.Stream(ctx, t.receiver(), api.StreamRequest{After: new(int64(0))}) {
			if err != nil {
				return err
			}
			if event.Kind != api.StreamMessage {
				continue
			}
			var message struct {
				Data load.Message `json:"data"`
			}
			if err := json.Unmarshal([]byte(event.Data), &message); err != nil {
				return err
			}
			t.Received(message.Data)
		}
		return nil
	})
}

// subscribe submits subscribe messages.
func (t *traffic) subscribe(g *load.Generator) {
	start(g, "subscribe", 100*time.Millisecond, func(ctx context.Context, n int) {
		data := fmt.Sprintf(`{"thing1":{"value":"booking %d-%d"}}`, t.number, n)
		t.call(ctx, "subscribe", func(ctx context.Context) error {
			_, err := t.client.Subscribe(ctx, api.SubscribeRequest{
				TemplateID: "tmpl-1", TemplateType: "BOOKING_CONFIRM", BusinessType: "course_booking", BusinessID: api.NumberOf(uint64(t.number*1_000_000 + n)),
				ReceiverUserID: "9", ReceiverOpenID: "oABC123", MessageData: json.RawMessage(data),
			})
			if err == nil {
				t.subscribed(data)
			}
			return err
		})
	})
}

// query reads statistics and lists.
func (t *traffic) query(g *load.Generator) {
	start(g, "query", 100*time.Millisecond, func(ctx context.Context, _ int) {
		t.call(ctx, "admin", func(ctx context.Context) error {
			_, err := t.client.Statistics(ctx)
			return err
		})
		t.call(ctx, "webhooks", func(ctx context.Context) error {
			_, err := t.client.Endpoints(ctx, api.EndpointsRequest{})
			return err
		})
	})
}

// summary returns a line for each function that was called.
func (t *traffic) summary() (lines []string) {
	for name, n := range t.tallies {
		if n.calls.Load() > 0 {
			lines = append(lines, fmt.Sprintf("%-9s %6d calls: %2d responses of 5xx, %2d broken connections, %2d calls succeeded by a repeat", name,
				n.calls.Load(), n.serverErrors.Load(), n.broken.Load(), n.repeated.Load()))
		}
	}
	slices.Sort(lines)
	return lines
}
