package overview

import (
	"time"

	"github.com/sendonce/sendonce/shared/task"
)

// MaxNames limits how many queues, and how many sender apps, are shown by their names. Callers choose
// these names, so there may be very many.
const MaxNames = 200

// interval is the length of one Throughput, and Intervals is how many of them a Queue has.
const (
	interval  = 5 * time.Minute
	Intervals = 72 // 6 hours
)

// Bounds are the upper bounds of the buckets of a Histogram, in seconds. The last bucket has none.
var Bounds = [...]float64{0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 21600, 86400}

// Snapshot is the state of everything at one instant, over all callers.
type Snapshot struct {
	At        time.Time // when it was read, by the clock of the database
	CountedTo time.Time // totals and throughput have what happened before this time; about a minute before At

	Queues      []Queue // by name; at most MaxNames, first those that are known longest
	OtherQueues Queue   // the sum of all other queues, without a name
	Senders     []Sender
	OtherApps   Sender // the sum of all other apps, without a name

	Alerts          []Alert  // open ones, newest first; at most 100
	PausedStreams   []string // streams of NATS that accepted nothing when they were last tried
	PausedTemplates Count    // templates of subscribe messages that are paused for a caller
	DeadLetters     Count    // events that wait for an operator
	Events          Backlog  // events of tasks and messages that wait to be published
	Messages        Messages
	Webhooks        Webhooks
}

// Count is a number of rows. Counting stops at a limit, so that it never takes long.
type Count struct {
	N    int
	More bool // there are more than N
}

// Backlog is what waits, and since when.
type Backlog struct {
	Count
	Oldest time.Duration // how long the first of those counted has been waiting; 0 = none waits
}

// Queue is what is known about the tasks of one queue.
type Queue struct {
	Name       string
	Scheduled  Count   // until their send time, or for a retry
	Pending    Backlog // for a sender
	Retries    Count   // those of Pending that were claimed before
	Processing Backlog // claimed by a sender. Oldest is the time since a sender claimed, or last extended, the oldest of them
	Held       Backlog // for an operator, as it is unknown whether they were sent
	Pause      *Pause  // nil = it is not paused

	Totals     Totals
	Throughput []Throughput // of the last six hours, oldest first, one for each Interval; nil = nothing happened in them
}

// Live returns the tasks that are not finished.
func (q Queue) Live() Count {
	return Count{}.add(q.Scheduled).add(q.Pending.Count).add(q.Processing.Count).add(q.Held.Count)
}

// Pause says why no tasks of a queue are claimed.
type Pause struct {
	Reason string
	By     string    // the operator or the function
	Manual bool      // an operator paused it
	Since  time.Time // when it began
	Until  time.Time // zero = until an operator resumes the queue
}

// Totals are counters. They grow from the first start of a version that counts, survive restarts, and
// never become smaller, unless nothing happens in the queue for 30 days, which removes them.
type Totals struct {
	Submitted     int64
	Claims        int64 // of finished tasks, each claim; those of a task that finishes twice count twice
	LeaseTimeouts int64
	Succeeded     int64
	Failed        map[task.Reason]int64 // also expired and cancelled tasks
	Wait          Histogram             // of finished tasks, from submission, or the send time, to the first claim
	Duration      Histogram             // from submission, or the send time, to the result, without expired and cancelled tasks
}

// FailedTasks is the sum of Failed.
func (t Totals) FailedTasks() (n int64) {
	for _, one := range t.Failed {
		n += one
	}
	return n
}

// Histogram counts durations by bucket.
type Histogram struct {
	Counts  [len(Bounds) + 1]int64 // of each bucket alone
	Seconds float64                // sum
}

// Throughput is what happened in a queue within one Interval.
type Throughput struct {
	Since                        time.Time
	Submitted, Succeeded, Failed int64
}

// Sender is one sender app, by the app_id of its claims.
type Sender struct {
	App        string
	Processing Count // tasks that it has claimed and not reported
	Succeeded  int64 // reports of success; this and the next ones are counters, as Totals
	Failed     int64 // reports of failure, also of tasks that were retried since
	Timeouts   int64 // leases that expired
	LastClaim  time.Time
	LastReport time.Time // of a result; zero = never, or over 30 days ago
}

// Alert is an open alert.
type Alert struct {
	ID    task.ID
	Since time.Time
	task.Alert
}

// Messages are the reliable messages that are not final.
type Messages struct {
	Due          Backlog // to be sent now, or to be sent again
	StuckSending Count   // no send is left, and no stream or receiver has ever had it
	StuckSent    Count   // no send is left, and the receiver did not confirm it
}

// Webhooks are the deliveries to endpoints and callbacks.
type Webhooks struct {
	Due       Backlog // deliveries that are due now
	Retrying  Count   // deliveries that failed and are tried again later
	Failing   int     // endpoints to which nothing was delivered since their last failure
	Disabled  int     // endpoints, by an operator or because of their responses
	Delivered int64   // counter of deliveries, as Totals
	Failed    int64   // counter of deliveries that were given up
}

func (c Count) add(other Count) Count { return Count{c.N + other.N, c.More || other.More} }

func (b Backlog) add(other Backlog) Backlog {
	return Backlog{b.Count.add(other.Count), max(b.Oldest, other.Oldest)}
}
