package deliver

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/robot"
	"github.com/sendonce/sendonce/shared/task"
)

// robotInterval is the time between the starts of two POSTs to a robot, in one process. Most vendors refuse more than 20 texts a minute.
const robotInterval = 4 * time.Second

// turnPause is how long post waits before it calls take again, if another text is first.
const turnPause = 50 * time.Millisecond

// robotTexts combines the events that wait for the next POST to the same robot. Otherwise many alerts at the same time would exceed the
// limit of the vendor, who would refuse the events after them, too. The zero value is ready for use.
type robotTexts struct {
	mu      sync.Mutex
	waiting map[task.ID][]*robotText // by endpoint; at most one more than may be in flight to one destination
	next    map[task.ID]time.Time    // by endpoint: when the next POST may start
}

// robotText is an event that waits for its POST.
type robotText struct {
	robot.Event
	alone  bool         // has a POST of its own
	result chan attempt // has room for one
}

// post posts an event to the robot of an endpoint, together with the others that wait: all of them get the result of this POST. An
// event that was tried before must be posted alone, because the vendor may have refused a text because of another event in it. post
// waits up to robotInterval, or up to twice as long if an event that is posted alone waits too. When ctx ends, post stops waiting.
func (r *robotTexts) post(ctx context.Context, endpoint task.ID, e robot.Event, alone bool, send func(text string) attempt) attempt {
	own := &robotText{e, alone, make(chan attempt, 1)}
	r.add(endpoint, own)
	for {
		together, wait := r.take(ctx, endpoint, own)
		if len(together) > 0 {
			sendTogether(together, send)
			return <-own.result
		}
		select {
		case a := <-own.result:
			return a
		case <-time.After(wait):
		case <-ctx.Done():
			if r.remove(endpoint, own) {
				return attempt{at: time.Now(), cancelled: true, err: "interrupted before the POST"}
			}
			return <-own.result
		}
	}
}

// sendTogether makes one POST for all events.
func sendTogether(together []*robotText, send func(text string) attempt) {
	a := attempt{at: time.Now(), cancelled: true, err: "interrupted by a panic"}
	events := make([]robot.Event, len(together))
	for i, t := range together {
		events[i] = t.Event
		defer func() { t.result <- a }()
	}
	a = send(robot.Text(events...))
}

func (r *robotTexts) add(endpoint task.ID, t *robotText) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting == nil {
		r.waiting, r.next = map[task.ID][]*robotText{}, map[task.ID]time.Time{}
	}
	r.waiting[endpoint] = append(r.waiting[endpoint], t)
}

// take returns the events that the caller must post now in one text, with own among them. It returns none if it is too early for the
// next text, another text is first, own has been taken, or ctx has ended. The caller then calls take again after wait.
func (r *robotTexts) take(ctx context.Context, endpoint task.ID, own *robotText) (together []*robotText, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if wait = r.next[endpoint].Sub(now); wait > 0 {
		return nil, wait
	}
	waiting := r.waiting[endpoint]
	if !slices.Contains(waiting, own) || ctx.Err() != nil {
		return nil, robotInterval // own.result or the end of ctx ends the wait
	}
	if own != waiting[0] && (own.alone || waiting[0].alone) {
		return nil, turnPause
	}
	maps.DeleteFunc(r.next, func(_ task.ID, at time.Time) bool { return at.Before(now) })
	r.next[endpoint] = now.Add(robotInterval)
	var rest []*robotText
	for _, t := range waiting {
		if t == own || !own.alone && !t.alone {
			together = append(together, t)
		} else {
			rest = append(rest, t)
		}
	}
	if r.waiting[endpoint] = rest; len(rest) == 0 {
		delete(r.waiting, endpoint)
	}
	return together, 0
}

// remove removes an event that will not be posted. It returns false if take has returned the event.
func (r *robotTexts) remove(endpoint task.ID, own *robotText) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.Index(r.waiting[endpoint], own)
	if i < 0 {
		return false
	}
	if r.waiting[endpoint] = slices.Delete(r.waiting[endpoint], i, i+1); len(r.waiting[endpoint]) == 0 {
		delete(r.waiting, endpoint)
	}
	return true
}
