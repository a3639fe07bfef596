package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"
)

// Ledger stores the results of calls and the messages that receivers got. All methods may be
// called from any goroutine. The error of a Check method joins at most ten differences, or
// ten of each kind.
type Ledger struct {
	mu        sync.Mutex
	tasks     map[string]string   // task ids by idempotency key
	claims    map[string][]string // claim ids by task id
	reports   map[string]int      // number of applied reports by task id
	sent      map[Message]Sent    // the acknowledged messages
	received  map[Message]int     // how many times each was received
	highest   map[string]int      // the highest N received, by sender
	overtaken map[string]int      // see Overtaken
}

// Message identifies a message, and is the data that tests send in it. Each sender numbers its
// messages from 1.
type Message struct {
	Sender string `json:"sender"`
	N      int    `json:"n"`
}

// Sent is the acknowledgement that the sender of a message got.
type Sent struct {
	ID  string // server_msg_id
	Ack string // accepted or saved
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger {
	return &Ledger{
		tasks: map[string]string{}, claims: map[string][]string{}, reports: map[string]int{},
		sent: map[Message]Sent{}, received: map[Message]int{}, highest: map[string]int{}, overtaken: map[string]int{},
	}
}

// Submitted records the task id that a submission returned. It returns an error if an earlier
// submission with the same key returned another id.
func (l *Ledger) Submitted(key, id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if before := l.tasks[key]; before != "" && before != id {
		return fmt.Errorf("key %s returned %s and %s", key, before, id)
	}
	l.tasks[key] = id
	return nil
}

// Claimed records a claim of a task.
func (l *Ledger) Claimed(id, claim string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.claims[id] = append(l.claims[id], claim)
}

// Reported records that a report of success was applied.
func (l *Ledger) Reported(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reports[id]++
}

// Sent records the acknowledgement of a message.
func (l *Ledger) Sent(m Message, s Sent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent[m] = s
}

// Received records that a receiver got a message. Call it in the order in which the receiver got the messages.
func (l *Ledger) Received(m Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.received[m]++; l.received[m] > 1 {
		return
	}
	if m.N < l.highest[m.Sender] {
		l.overtaken[m.Sender]++
	}
	l.highest[m.Sender] = max(l.highest[m.Sender], m.N)
}

// Tasks returns how many tasks were submitted, claimed and reported.
func (l *Ledger) Tasks() (submitted, claimed, reported int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.tasks), len(l.claims), len(l.reports)
}

// TaskIDs returns a copy of the task ids by idempotency key.
func (l *Ledger) TaskIDs() map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.tasks)
}

// Messages returns how many messages were acknowledged, how many were received, and how many were received more than
// once.
func (l *Ledger) Messages() (sent, received, repeated int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.received {
		if n > 1 {
			repeated++
		}
	}
	return len(l.sent), len(l.received), repeated
}

// Acknowledged returns the number of messages with this acknowledgement: accepted or saved.
func (l *Ledger) Acknowledged(ack string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.sent {
		if s.Ack == ack {
			n++
		}
	}
	return n
}

// Overtaken returns how many messages of each sender were received for the first time after a later message of the same
// sender.
func (l *Ledger) Overtaken() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.overtaken)
}

// tasksSQL returns at most ten tasks whose rows differ from the ledger or which are not in the ledger.
// task_done.status 2 is succeeded, and task_live.state 2 is processing.
const tasksSQL = `
with ledger as (select id::uuid, claim::bigint, reported from unnest($1::text[], $2::text[], $3::bool[]) e (id, claim, reported)),
compared as (
    select e.id, case
            when t.id is null then 'has no row'
            when e.reported and (d.status, d.claim_id) is distinct from (2::smallint, e.claim) then 'was reported, but has not succeeded by the recorded claim'
            when not e.reported and d.id is not null then 'is final, but was not reported'
            when not e.reported and e.claim is not null and (l.state, l.claim_id) is distinct from (2::smallint, e.claim) then 'does not have the recorded claim'
        end as difference
    from ledger e left join tasks t using (id) left join task_live l using (id) left join task_done d using (id)
    union all
    select id, 'was not submitted' from tasks t where not exists (select from ledger e where e.id = t.id)
)
select id::text, difference from compared where difference is not null limit 10`

// CheckTasks checks that no submitted task was claimed or reported more than once, and that the database has each
// submitted task and no other task. Each reported task must have succeeded by the recorded claim. A task that was not
// reported must not be final; if it was claimed, it must still have the recorded claim.
func (l *Ledger) CheckTasks(ctx context.Context, conn *pgx.Conn) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var wrong []error
	var ids []string
	var claims []*string
	var reported []bool
	for _, id := range l.tasks {
		var claim *string
		if n := len(l.claims[id]); n > 0 {
			claim = &l.claims[id][n-1]
		}
		if len(l.claims[id]) > 1 || l.reports[id] > 1 {
			wrong = append(wrong, l.countError(id))
		}
		ids, claims, reported = append(ids, id), append(claims, claim), append(reported, l.reports[id] > 0)
	}
	rows, err := conn.Query(ctx, tasksSQL, ids, claims, reported)
	if err != nil {
		return fmt.Errorf("compare tasks with the database: %w", err)
	}
	var id, difference string
	_, err = pgx.ForEachRow(rows, []any{&id, &difference}, func() error {
		wrong = append(wrong, fmt.Errorf("task %s %s", id, difference))
		return nil
	})
	if err != nil {
		return fmt.Errorf("compare tasks with the database: %w", err)
	}
	return joinFirst(wrong)
}

// CheckTasksDone checks that each submitted task was claimed once and reported once.
func (l *Ledger) CheckTasksDone() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var wrong []error
	for _, id := range l.tasks {
		if len(l.claims[id]) != 1 || l.reports[id] != 1 {
			wrong = append(wrong, l.countError(id))
		}
	}
	return joinFirst(wrong)
}

func (l *Ledger) countError(id string) error {
	return fmt.Errorf("task %s was claimed %d times and reported %d times", id, len(l.claims[id]), l.reports[id])
}

// CheckMessages checks that the database has each acknowledged message, and no other message of the same senders.
func (l *Ledger) CheckMessages(ctx context.Context, conn *pgx.Conn) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ids, senders []string
	for m, s := range l.sent {
		ids, senders = append(ids, s.ID), append(senders, m.Sender)
	}
	slices.Sort(senders)
	senders = slices.Compact(senders)
	const sql = `
select count(e.id), count(*) from messages m left join (select distinct unnest($1::text[]::uuid[])) e (id) using (id)
where sender = any($2)`
	var found, all int
	if err := conn.QueryRow(ctx, sql, ids, senders).Scan(&found, &all); err != nil {
		return fmt.Errorf("compare messages with the database: %w", err)
	}
	if found != len(ids) || all != len(ids) {
		return fmt.Errorf("%d messages were acknowledged; the database has %d of them, and %d messages of their senders in all", len(ids), found, all)
	}
	return nil
}

// CheckReceived checks that each acknowledged message was received, and that each received message
// was acknowledged.
func (l *Ledger) CheckReceived() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var wrong []error
	for m := range l.sent {
		if l.received[m] == 0 {
			wrong = append(wrong, fmt.Errorf("message %d of %s was not received", m.N, m.Sender))
		}
	}
	for m := range l.received {
		if l.sent[m] == (Sent{}) {
			wrong = append(wrong, fmt.Errorf("message %d of %s was received and not acknowledged", m.N, m.Sender))
		}
	}
	return joinFirst(wrong)
}

// CheckReceivedOnce is CheckReceived, and also checks that no message was received more than once.
func (l *Ledger) CheckReceivedOnce() error {
	err := l.CheckReceived()
	l.mu.Lock()
	defer l.mu.Unlock()
	var wrong []error
	for m, n := range l.received {
		if n > 1 {
			wrong = append(wrong, fmt.Errorf("message %d of %s was received %d times", m.N, m.Sender, n))
		}
	}
	return errors.Join(err, joinFirst(wrong))
}

// joinFirst joins the first ten errors, sorted by their text.
func joinFirst(wrong []error) error {
	slices.SortFunc(wrong, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return errors.Join(wrong[:min(len(wrong), 10)]...)
}
