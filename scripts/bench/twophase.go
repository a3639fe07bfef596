package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sendonce/sendonce/shared/sandbox"
)

const (
	acceptedAck = "accepted"
	savedAck    = "saved"

	quietWait  = 10 * time.Minute // for all that was accepted to be saved and sent
	quietEvery = 50 * time.Millisecond
)

// twoPhase is a server that accepts messages before it saves them, NATS in this
// process, and a gate before Postgres.
type twoPhase struct {
	events
	o       options
	s       *letterSummary
	js      jetstream.JetStream
	gate    *gate
	address string // of the server
}

// measureTwoPhase measures on a database of its own.
func (s *letterSummary) measureTwoPhase(ctx context.Context, o options, binary, database string) (err error) {
	conn, server, end, err := ground(ctx, database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	nc, err := nats.Connect(server.URL())
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	g, err := openGate(database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	env := append(settings(g.url), "NATS_URL="+server.URL(), "TWO_PHASE_ENABLED=true",
		fmt.Sprint("TWO_PHASE_SHARDS=", o.shards), fmt.Sprint("TWO_PHASE_BATCH_SIZE=", o.batch))
	t := &twoPhase{events: events{binary: binary, env: env, conn: conn, nats: server}, o: o, s: s, js: js, gate: g}
	defer func() { err = errors.Join(err, t.drain()) }()
	return t.measure(ctx)
}

func (t *twoPhase) measure(ctx context.Context) (err error) {
	if t.address, err = t.start(ctx, ""); err != nil {
		return err
	}
	trigger, err := t.trigger(ctx, t.address)
	if err != nil {
		return err
	}
	for _, n := range t.o.connections {
		for _, ack := range []string{savedAck, acceptedAck} {
			if _, err := t.post(ctx, ack, ack, n); err != nil {
				return err
			}
		}
	}
	if err := t.stall(ctx); err != nil {
		return err
	}
	if err := drain(trigger); err != nil {
		return err
	}
	if err := t.catchUp(ctx); err != nil {
		return err
	}
	return t.check(ctx)
}

// trigger carries events to the functions at address. It returns once accepted
// messages are being saved.
func (t *twoPhase) trigger(ctx context.Context, address string) (*sandbox.Process, error) {
	p, err := sandbox.Start(sandbox.Command{
		Path: t.binary, Args: []string{"trigger"}, Env: append(slices.Clone(t.env), "SENDONCE_FUNCTIONS_URL=http://"+address),
	})
	if err != nil {
		return nil, err
	}
	t.processes = append(t.processes, p)
	_, err = t.saved(ctx)
	return p, err
}

// saved waits until nothing is accepted that is not saved, and gives the place
// of the last message in the stream.
func (t *twoPhase) saved(ctx context.Context) (last uint64, err error) {
	err = t.quiet(ctx, func() (bool, error) {
		stream, err := t.js.Stream(ctx, "ACCEPTED")
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		last = stream.CachedInfo().State.LastSeq
		consumers, left := 0, 0
		list := stream.ListConsumers(ctx)
		for c := range list.Info() {
			consumers++
			left += int(c.NumPending) + c.NumAckPending
		}
		return consumers == t.o.shards && left == 0, list.Err()
	})
	return last, err
}

// settled waits until all is saved and everybody has been sent what is theirs.
func (t *twoPhase) settled(ctx context.Context) (last uint64, err error) {
	if last, err = t.saved(ctx); err != nil {
		return 0, err
	}
	return last, t.quiet(ctx, func() (quiet bool, err error) {
		const sql = `select not exists (select from message_live) and not exists (select from event_outbox)`
		return quiet, t.conn.QueryRow(ctx, sql).Scan(&quiet)
	})
}

func (t *twoPhase) quiet(ctx context.Context, is func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, quietWait)
	defer cancel()
	look := time.NewTicker(quietEvery)
	defer look.Stop()
	for {
		if quiet, err := is(); err != nil || quiet {
			return err
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("wait until all is saved and sent: %w", ctx.Err())
		}
	}
}

// post hands over messages for a phase, then lets the system come to rest.
func (t *twoPhase) post(ctx context.Context, name, ack string, n int) (result, error) {
	p := phase{name, n, 1, unbounded, t.o.duration, t.s.letters.post(ack, n)}
	r, err := p.run(ctx, t.address)
	if err != nil {
		return r, err
	}
	t.s.add(r)
	_, err = t.settled(ctx)
	return r, err
}

// stall compares a database that answers with one that does not.
func (t *twoPhase) stall(ctx context.Context) error {
	n := t.o.connections[len(t.o.connections)/2]
	healthy := t.s.results[slices.IndexFunc(t.s.results, func(r result) bool { return r.name == acceptedAck && r.connections == n })]
	p := phase{"accepted, database stalled", n, 1, unbounded, t.o.stall, t.s.letters.post(acceptedAck, n)}
	t.gate.shut.Lock()
	r, err := p.run(ctx, t.address)
	t.gate.shut.Unlock()
	if err != nil {
		return err
	}
	t.s.add(r)
	t.s.stalled, t.s.ratio = n, r.p99.Seconds()/healthy.p99.Seconds()
	_, err = t.settled(ctx)
	return err
}

// savedRateSQL gives the rows a second from the first transaction to the last
// among what was accepted after a place: a row's saved_at is the beginning of its
// own.
const savedRateSQL = `
with s as (select saved_at from accepted_messages where accept_seq > $1), ends as (select min(saved_at) as oldest, max(saved_at) as newest from s)
select coalesce(count(*) filter (where saved_at < newest) / nullif(extract(epoch from newest - oldest), 0), 0)::float8
from s, ends group by newest, oldest`

// catchUp lets accepted messages pile up while nothing carries them, and measures
// how fast they are saved: where nothing is relayed meanwhile, and where the same
// server relays them at the same time.
func (t *twoPhase) catchUp(ctx context.Context) error {
	alone, err := t.start(ctx, "save")
	if err != nil {
		return err
	}
	for _, where := range []struct{ name, address string }{{"save a backlog", alone}, {"save and relay a backlog", t.address}} {
		after, err := t.pileUpAccepted(ctx)
		if err != nil {
			return err
		}
		trigger, err := t.trigger(ctx, where.address)
		if err != nil {
			return err
		}
		r := result{name: where.name, connections: t.o.shards}
		if err := t.conn.QueryRow(ctx, savedRateSQL, int64(after)).Scan(&r.rate); err != nil {
			return fmt.Errorf("%s: %w", where.name, err)
		}
		t.s.add(r)
		if where.address == t.address {
			if _, err := t.settled(ctx); err != nil {
				return err
			}
		}
		if err := drain(trigger); err != nil {
			return err
		}
	}
	return nil
}

// pileUpAccepted gives the place in the stream after which the backlog begins.
func (t *twoPhase) pileUpAccepted(ctx context.Context) (after uint64, err error) {
	stream, err := t.js.Stream(ctx, "ACCEPTED")
	if err != nil {
		return 0, err
	}
	n := t.o.connections[len(t.o.connections)/2]
	p := phase{"accepted, nobody saves", n, 1, func() int { return t.o.backlog }, quietWait, t.s.letters.post(acceptedAck, n)}
	r, err := p.run(ctx, t.address)
	if err != nil {
		return 0, err
	}
	t.s.add(r)
	return stream.CachedInfo().State.LastSeq, nil
}

// rowsSQL counts those of the ids that are rows.
const rowsSQL = `select count(*) from messages where id in (select unnest($1::text[]::uuid[]))`

// check compares what was promised with the rows and the inboxes.
func (t *twoPhase) check(ctx context.Context) (err error) {
	fmt.Fprintln(t.s.progress, "counting in the database and in the inboxes")
	t.s.rows = map[string]int{}
	for ack, ids := range t.s.letters.ids {
		var n int
		if err := t.conn.QueryRow(ctx, rowsSQL, ids).Scan(&n); err != nil {
			return fmt.Errorf("count rows: %w", err)
		}
		t.s.rows[ack] = n
	}
	t.s.received, err = t.s.letters.receive(ctx, t.js)
	return err
}

// letterSummary is what a run of two-phase acknowledgement found out.
type letterSummary struct {
	summary
	shards, batch int
	letters       letters
	stalled       int            // connections of the stalled phase
	ratio         float64        // of its p99 to that of the same with a healthy database
	rows          map[string]int // of the acknowledged messages, by acknowledgement
	received      received
}

func (s *letterSummary) wrong() error {
	accepted, saved := len(s.letters.ids[acceptedAck]), len(s.letters.ids[savedAck])
	r := s.received
	switch {
	case len(s.failures()) > 0:
		return fmt.Errorf("calls failed: %s", strings.Join(s.failures(), "; "))
	case accepted == 0 || saved == 0 || s.rows[acceptedAck] != accepted || s.rows[savedAck] != saved:
		return fmt.Errorf("of %d accepted and %d saved messages, %d and %d are rows", accepted, saved, s.rows[acceptedAck], s.rows[savedAck])
	case r.messages != accepted+saved || r.told != accepted:
		return fmt.Errorf("of %d messages the receiver has %d; of %d accepted ones %d senders were told", accepted+saved, r.messages, accepted, r.told)
	case r.reorders[acceptedAck] > 0:
		return fmt.Errorf("%d accepted messages came behind later ones of their senders", r.reorders[acceptedAck])
	}
	return nil
}

// String is the table in Markdown with what must be known to read it.
func (s *letterSummary) String() string {
	var b strings.Builder
	b.WriteString("| messages | connections | rows/s | p50 ms | p99 ms | cores used by generator and NATS |\n|---|--:|--:|--:|--:|--:|\n")
	for _, r := range s.results {
		fmt.Fprintf(&b, "| %s | %d | %s | %s | %s | %s |\n", r.name, r.connections, known("%.0f", r.rate),
			known("%.1f", r.p50.Seconds()*1000), known("%.1f", r.p99.Seconds()*1000), known("%.2f", r.cores))
	}
	fmt.Fprintf(&b, "\n%s\n", s.machine())
	fmt.Fprintf(&b, `Settings: TWO_PHASE_SHARDS=%d, TWO_PHASE_BATCH_SIZE=%d, all others as they are by default.
One server with all functions, a trigger, Postgres and the load generator, in which NATS runs, share this machine. Accepted messages are
saved and relayed while others are accepted, unless nobody saves. A backlog is saved from as many shards as it has
connections: by a process that only saves, then by the server while it relays what is saved. The rate is counted in Postgres,
between the first transaction and the last.
`, s.shards, s.batch)
	fmt.Fprintf(&b, "\np99 of accepted at %d connections, database stalled to healthy: %.2f.\n", s.stalled, s.ratio)
	if failures := s.failures(); len(failures) > 0 {
		fmt.Fprintf(&b, "Failed: %s.\n", strings.Join(failures, "; "))
	} else {
		b.WriteString("Failed: none.\n")
	}
	fmt.Fprintf(&b, "Checked: of %d accepted ids %d are rows, of %d saved ids %d.\n",
		len(s.letters.ids[acceptedAck]), s.rows[acceptedAck], len(s.letters.ids[savedAck]), s.rows[savedAck])
	r := s.received
	fmt.Fprintf(&b, "At the receiver: %d messages, %d duplicates, %d behind a later one of their sender when accepted, %d when saved. %d senders of accepted\nmessages were told that they are saved.\n",
		r.messages, r.duplicates, r.reorders[acceptedAck], r.reorders[savedAck], r.told)
	return b.String()
}
