package store

import (
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	msg "github.com/sendonce/sendonce/shared/message"
)

// Relayed is the result of one batch of a relay.
type Relayed struct {
	Rows              int         // due rows in the batch
	More              bool        // more rows may be due now
	BrokerUnavailable bool        // the broker itself was unavailable, so the next batch would fail too
	StreamPaused      bool        // a stream was paused: if it is full, it needs trimming
	NextTries         []time.Time // when the delayed rows and the paused streams are due again

	Streams []StreamChange
}

// StreamChange reports that a stream was paused or resumed. If a paused stream is paused again, this is not
// reported.
type StreamChange struct {
	Stream string
	Reason string // why the stream accepts nothing; "" = it was resumed
}

// ProbeMessages is about how many messages of a stream are tried when the pause of the stream ends.
const ProbeMessages = 16

// JoinStreamPauses joins the row p of the stream s.stream in stream_pauses, by one lookup in the primary key.
// If there is no row, the columns of p are null.
const JoinStreamPauses = ` left join lateral (select until, failures from stream_pauses where stream_pauses.stream = s.stream offset 0) p on true `

// StreamIsOpen is the condition that a stream may be tried now. p is the row of JoinStreamPauses.
const StreamIsOpen = `(p.until is null or p.until <= now())`

// streamState is the state of a stream before a batch, and the results of the batch.
type streamState struct {
	hasRow   bool // stream_pauses has a row for the stream
	failures int  // consecutive failures before the batch

	rows     int           // in the batch
	byCaller map[int64]int // rows in the batch, by caller
	more     bool          // a caller may have more due rows than those in the batch
	accepted bool          // a publication was accepted
	scope    msg.Scope     // the widest scope of a failure; msg.OneMessage also if there was none
	reason   string        // of the failure with this scope
}

// StreamStates has the states of the streams of one batch, by name.
type StreamStates map[string]*streamState

// AddRow counts a row of the batch. If the batch has at least room rows of one caller and stream, there may be more due
// rows. failures is nil if the stream has no row in stream_pauses.
func (s StreamStates) AddRow(stream string, caller int64, room int, failures *int32) {
	state := s[stream]
	if state == nil {
		state = &streamState{hasRow: failures != nil, failures: int(OrZero(failures)), byCaller: map[int64]int{}}
		s[stream] = state
	}
	state.rows++
	state.byCaller[caller]++
	state.more = state.more || state.byCaller[caller] >= room
}

// AddResult records the result of one publication.
func (s StreamStates) AddResult(stream string, r msg.Result) {
	state := s[stream]
	switch {
	case r.Outcome == msg.Accepted:
		state.accepted = true
	case r.Outcome == msg.Unavailable && r.Scope > state.scope:
		state.scope, state.reason = r.Scope, r.Reason
	}
}

const (
	// pauseStreamSQL pauses a stream and returns the end of the pause. With failures 0 it does not pause the stream, but
	// records that the broker is unavailable; then an existing row is written again only if the reason changes.
	pauseStreamSQL = `
insert into stream_pauses (stream, failures, reason, until) values ($1, $2, $3, clock_timestamp() + make_interval(secs => $4))
on conflict (stream) do update set failures = excluded.failures, reason = excluded.reason, until = greatest(stream_pauses.until, excluded.until)
where excluded.failures > stream_pauses.failures or stream_pauses.reason <> excluded.reason or excluded.until > stream_pauses.until and excluded.failures > 0
returning until, failures > 0`

	resumeStreamSQL = `delete from stream_pauses where stream = $1`
)

// Queue adds the statements that pause and resume streams, and that record why the broker is unavailable. It also adds the
// results to relayed. A stream that has not failed and has no row in stream_pauses needs no statement.
func (s StreamStates) Queue(batch *pgx.Batch, relayed *Relayed) {
	for _, name := range slices.Sorted(maps.Keys(s)) { // sorted, so that two relays never deadlock
		state := s[name]
		relayed.Rows += state.rows
		if state.scope == msg.OneMessage { // the stream itself has not failed
			relayed.More = relayed.More || state.more
			if state.hasRow {
				batch.Queue(resumeStreamSQL, name)
			}
			if state.failures > 0 {
				relayed.Streams = append(relayed.Streams, StreamChange{Stream: name})
			}
			continue
		}
		n, pause := state.failures, time.Duration(0)
		if state.accepted {
			n = 0
		}
		if state.scope == msg.OneStream {
			n++
			pause = msg.StreamPause(n)
			if state.failures == 0 {
				relayed.Streams = append(relayed.Streams, StreamChange{name, state.reason})
			}
			relayed.StreamPaused = true
		} else {
			relayed.BrokerUnavailable = true
		}
		batch.Queue(pauseStreamSQL, name, n, Storable(state.reason), pause.Seconds()).Query(func(rows pgx.Rows) error {
			var until time.Time
			var paused bool
			return Each(rows, []any{&until, &paused}, func() {
				if paused {
					relayed.NextTries = append(relayed.NextTries, until)
				}
			})
		})
	}
}

// SettleTimeout limits the end of a relay's transaction, which stores the results of the publications even if the timeout
// of the relay has passed.
const SettleTimeout = 5 * time.Second
