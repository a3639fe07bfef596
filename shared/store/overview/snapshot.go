package overview

import (
	"time"

	"github.com/sendonce/sendonce/shared/task"
)

// MaxNames limits how many queues, and how many sender apps, have counters of their own and are shown by name.
// Callers choose these names, so there may be very many.
const MaxNames = 200

const (
	interval  = 5 * time.Minute // the length of one Throughput
	Intervals = 72              // how many Throughputs a Queue has, together 6 hours
)

// Bounds are the upper bounds of the buckets of a Histogram, in seconds. The last bucket has no upper bound.
var Bounds = [...]float64{0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 21600, 86400}

// Snapshot is the state of all queues, senders, webhooks and messages of all callers, at one instant.
type Snapshot struct {
	At        time.Time // by the clock of the database
	CountedTo time.Time // the time up to which all counters are counted; usually about a minute before At

	Queues      []Queue  // at most MaxNames, sorted by name; those with counters of their own are never left out
	OtherQueues Queue    // the sum of all other queues, without a name or a pause; Pending.Oldest leaves out paused queues
	Senders     []Sender // chosen and sorted like Queues
	OtherApps   Sender   // the sum of all other apps, without a name

	Alerts          []Alert  // open alerts, newest first; at most 100
	PausedStreams   []string // streams of NATS that accepted nothing when they were last tried
	PausedTemplates Count    // paused templates of subscribe messages; a template counts once for each caller
	DeadLetters     Count    // events that wait for an operator
	Events          Backlog  // rows of event_outbox, each with one or more events that wait to be published
	Messages        Messages
	Webhooks        Webhooks
}

// Count is a number of rows. Counting stops at a limit, so that it never takes long.
type Count struct {
	N    int
	More bool // counting stopped at a limit, so there may be more than N
}

// Backlog is a number of rows that wait.
type Backlog struct {
	Count
	Oldest time.Duration // how long the oldest row (in a Queue: the oldest of the counted rows) has waited; 0 = no row waits
}

// Queue is the state of the tasks of one queue.
type Queue struct {
	Name       string
	Scheduled  Count   // tasks that wait for their send time, or for a retry
	Pending    Backlog // tasks that wait for a sender
	Retries    Count   // the tasks of Pending with a retry_count above 0
	Processing Backlog // claimed tasks; Oldest is the longest time since a task was claimed or its lease last extended
	Held       Backlog // tasks that wait for an operator, since it is unknown whether they were sent
	Pause      *Pause  // nil = not paused

	Totals     Totals
	Throughput []Throughput // the last Intervals, oldest first; nil = no task was submitted or finished in this time
}

// Live returns the number of tasks that are not finished.
func (q Queue) Live() Count {
	return Count{}.add(q.Scheduled).add(q.Pending.Count).add(q.Processing.Count).add(q.Held.Count)
}

// Pause is the pause of a queue. The tasks of a paused queue are not claimed.
type Pause struct {
	Reason string
	By     string // the operator or the function
	Manual bool   // an operator paused the queue
	Since  time.Time
	Until  time.Time // zero = until an operator resumes the queue
}

// Totals are counters of a queue. They survive restarts and never become smaller, except that they begin at 0 again if
// nothing was counted for the queue in 30 days.
type Totals struct {
	Submitted     int64
	Claims        int64 // of finished tasks, at most maxClaims of each; the claims of a task that finishes twice count twice
	LeaseTimeouts int64
	Succeeded     int64
	Failed        map[task.Reason]int64 // including expired and cancelled tasks
	Wait          Histogram             // of finished tasks that were claimed: from submission, or a later send time, to the first claim
	Duration      Histogram             // from submission, or a later send time, to the result; without expired and cancelled tasks
}

// Histogram counts durations by bucket.
type Histogram struct {
	Counts  [len(Bounds) + 1]int64 // of each bucket alone
	Seconds float64                // the sum of all durations
}

// Throughput has the numbers of tasks that were submitted to a queue, succeeded and failed within five minutes.
type Throughput struct {
	Since                        time.Time
	Submitted, Succeeded, Failed int64
}

// Sender is one sender app. Succeeded, Failed and Timeouts are counters like Totals.
type Sender struct {
	App        string    // the app_id of the app's claims
	Processing Count     // tasks that the app has claimed and not reported
	Succeeded  int64     // applied reports of success
	Failed     int64     // applied reports of failure, including those of tasks that were retried since
	Timeouts   int64     // leases that expired
	LastClaim  time.Time // of a task in processing (or its last extension), or of a finished task
	LastReport time.Time // applied report; zero = never, or before the app's counters were removed
}

// Alert is an open alert.
type Alert struct {
	ID    task.ID
	Since time.Time
	task.Alert
}

// Messages are the reliable messages that are not final.
type Messages struct {
	Due          Backlog // messages that are due to be sent, or sent again
	StuckSending Count   // messages with no send left that no stream or receiver accepted
	StuckSent    Count   // messages with no send left that were accepted, but not confirmed by enough consumers
}

// Webhooks are the deliveries to endpoints and callbacks. Delivered and Failed are counters like Totals.
type Webhooks struct {
	Due       Backlog // deliveries that are due now; without those to disabled endpoints and of revoked callers
	Retrying  Count   // deliveries that failed and will be tried again later; likewise
	Failing   int     // enabled endpoints to which nothing was delivered since their last failure
	Disabled  int     // endpoints that are disabled, by an operator or because of their responses
	Delivered int64
	Failed    int64 // deliveries that failed permanently
}

func (c Count) add(other Count) Count { return Count{c.N + other.N, c.More || other.More} }

func (b Backlog) add(other Backlog) Backlog {
	return Backlog{b.Count.add(other.Count), max(b.Oldest, other.Oldest)}
}
