package events_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/events"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/task"
)

// brokerWithFull returns a broker where one stream is full. It accepts messages for all others.
func brokerWithFull(stream string) *storetest.Broker {
	return &storetest.Broker{Respond: func(d messages.Due) msg.Result {
		if d.To().Stream() == stream {
			return storetest.StreamFull
		}
		return storetest.Accepted
	}}
}

// endPauses ends all pauses, as if their time had passed.
func endPauses(t *testing.T, db *storetest.DB) {
	t.Helper()
	db.Exec(t, `update stream_pauses set until = now() - interval '1 second'`)
}

// countUpdated counts the live messages that were updated after they were saved.
func countUpdated(t *testing.T, db *storetest.DB) int {
	t.Helper()
	return db.Count(t, `select count(*) from message_live l join messages m using (id) where l.xmin <> m.xmin`)
}

func TestFullStreamPausesAsAWhole(t *testing.T) {
	t.Parallel()
	for full, other := range map[string]string{msg.StreamUsers: msg.StreamMessages, msg.StreamMessages: msg.StreamUsers} {
		t.Run(full, func(t *testing.T) {
			t.Parallel()
			db := storetest.Open(t)
			address := map[string]func(*messages.Submission){
				msg.StreamUsers: storetest.SendTo(msg.User, "bob"), msg.StreamMessages: storetest.SendTo(msg.Subject, "msg.orders.paid"),
			}
			var waiting []*messages.Submission
			var sends []string
			for i := range 120 { // more than a batch
				waiting = append(waiting, storetest.Message(fmt.Sprint(i), address[full]))
				db.MustSave(t, waiting[i])
				sends = append(sends, storetest.MsgID(waiting[i], "1.1"))
			}
			b := brokerWithFull(full)
			for failures := 1; failures <= 7; failures++ {
				began := time.Now()
				relayed := db.RelayDue(t, b)
				require.False(t, relayed.More, "the relay does not try again at once")
				if failures == 1 {
					require.Equal(t, []store.StreamChange{{Stream: full, Reason: storetest.StreamFull.Reason}}, relayed.Streams)
					paused, err := db.Events.PausedStreams(t.Context())
					require.NoError(t, err)
					require.Equal(t, []string{full}, paused)
				} else {
					require.Empty(t, relayed.Streams, "the stream was paused before")
				}
				require.Len(t, relayed.NextTries, 1)
				require.WithinDuration(t, began.Add(msg.StreamPause(failures)), relayed.NextTries[0], time.Second)
				require.Zero(t, db.RelayDue(t, b).Rows, "nothing is tried during the pause")
				at, err := db.Events.NextRelay(t.Context())
				require.NoError(t, err)
				require.True(t, relayed.NextTries[0].Equal(at), "the relay is woken when the pause ends")

				good := storetest.Message("good "+fmt.Sprint(failures), address[other], func(m *messages.Submission) { m.Confirm = false })
				db.MustSave(t, good)
				require.Equal(t, 1, db.RelayDue(t, b).Rows)
				require.Equal(t, "sent", db.MustMessage(t, good.ID).State(), "messages to the other stream are sent")
				endPauses(t, db)
			}
			require.Zero(t, countUpdated(t, db), "no waiting message was updated")
			require.Equal(t, storetest.StreamFull.Reason, db.MustMessage(t, waiting[119].ID).LastError, "each waiting message shows the reason")

			accepts := storetest.Always(storetest.Accepted)
			relayed := db.RelayDue(t, accepts)
			relayed.NextTries = nil
			require.Equal(t, store.Relayed{Rows: store.ProbeMessages, More: true, Streams: []store.StreamChange{{Stream: full}}}, relayed, "a few messages are tried first")
			for db.RelayDue(t, accepts).More {
			}
			require.Equal(t, sends, accepts.MsgIDs(), "all are sent, in their order")
			require.Zero(t, db.Count(t, `select count(*) from stream_pauses`))
		})
	}
}

func TestStreamThatAcceptedSomeIsPausedBriefly(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	for i := range 3 {
		db.MustSave(t, storetest.Message(fmt.Sprint(i), storetest.SendTo(msg.User, "bob")))
	}
	for range 5 {
		db.RelayDue(t, storetest.Always(storetest.StreamFull))
		endPauses(t, db)
	}
	room := 1
	db.RelayDue(t, &storetest.Broker{Respond: func(messages.Due) msg.Result {
		if room--; room >= 0 {
			return storetest.Accepted
		}
		return storetest.StreamFull
	}})
	require.Equal(t, 1, db.Count(t, `select failures from stream_pauses`))
}

func TestMessagesOfFullSubjectAreOvertaken(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	bad, good := storetest.Message("bad", storetest.SendTo(msg.User, "ann")), storetest.Message("good", storetest.SendTo(msg.User, "bob"))
	db.MustSave(t, bad)
	db.MustSave(t, good)
	b := &storetest.Broker{Respond: func(d messages.Due) msg.Result {
		if d.ID == bad.ID {
			return storetest.SubjectFull
		}
		return storetest.Accepted
	}}
	db.Exec(t, `update messages set created_at = now() - interval '30 seconds'`)
	relayed := db.RelayDue(t, b)
	require.Equal(t, "sent", db.MustMessage(t, good.ID).State())
	require.Zero(t, db.Count(t, `select count(*) from stream_pauses`), "the stream of the full subject is not paused")
	require.WithinRange(t, slices.MinFunc(relayed.NextTries, time.Time.Compare), time.Now().Add(5*time.Second), time.Now().Add(31*time.Second), "the pause grows with the age of the message")
}

func TestRedriveKeepsTheStreamOfItsMessage(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	for to, kind := range map[string]msg.Kind{"bob": msg.User, "msg.a.b": msg.Subject, "orders.paid": msg.Subject, "payments": msg.Subject, "https://a.example/x": msg.URL} {
		m := storetest.Message(to, storetest.SendTo(kind, to))
		db.MustSave(t, m)
		stream := func() string {
			return storetest.Value[string](t, db, `select stream from message_live where id = $1`, m.ID)
		}
		require.Equal(t, m.To.Stream(), stream())
		_, err := db.Messages.Abandon(t.Context(), m.ID, store.Operator{Name: "ops"})
		require.NoError(t, err)
		_, err = db.Messages.Redrive(t.Context(), m.ID, store.Operator{Name: "ops"})
		require.NoError(t, err)
		require.Equal(t, m.To.Stream(), stream())
	}
}

// addEvents inserts rows of event_outbox for a stream. A row for USERS has one acknowledgement, a row for EVENTS two events of tasks.
func addEvents(t *testing.T, db *storetest.DB, stream string, rows int) {
	t.Helper()
	for range rows {
		db.Exec(t, map[string]string{
			"USERS":  `insert into event_outbox (kind, ids) values ('message.saved', array[gen_random_uuid()])`,
			"EVENTS": `insert into event_outbox (kind, ids) values ('task.succeeded', array[gen_random_uuid(), gen_random_uuid()])`,
		}[stream])
	}
}

// rowVersions returns the ids and versions of the rows of event_outbox for a stream.
func rowVersions(t *testing.T, db *storetest.DB, stream string) string {
	t.Helper()
	return storetest.Value[string](t, db, `select string_agg(id || ':' || xmin, ' ' order by id) from event_outbox where stream = $1`, stream)
}

func TestEventsOfOneStreamDoNotWaitForAnother(t *testing.T) {
	t.Parallel()
	for full, other := range map[string]string{"USERS": "EVENTS", "EVENTS": "USERS"} {
		t.Run(full, func(t *testing.T) {
			t.Parallel()
			db := storetest.Open(t)
			addEvents(t, db, full, 20) // far more than a batch, and inserted first
			addEvents(t, db, other, 5)
			var published []events.Due
			relay := func(fullStream string) store.Relayed {
				t.Helper()
				relayed, err := db.Events.Relay(t.Context(), "", 4, func(_ context.Context, due []events.Due) ([]msg.Result, error) {
					return store.Column(due, func(e events.Due) msg.Result {
						if e.Stream() == fullStream {
							return storetest.StreamFull
						}
						published = append(published, e)
						return storetest.Accepted
					}), nil
				})
				require.NoError(t, err)
				return relayed
			}
			drain := func(fullStream string) {
				t.Helper()
				for relay(fullStream).More {
				}
			}
			before := rowVersions(t, db, full)
			drain(full)
			require.Zero(t, db.Count(t, `select count(*) from event_outbox where stream = $1`, other), "all events of the other stream are published")
			require.Equal(t, 20, db.Count(t, `select count(*) from event_outbox`))
			require.Equal(t, before, rowVersions(t, db, full), "waiting rows are not updated")
			at, err := db.Events.NextRelay(t.Context())
			require.NoError(t, err)
			require.WithinRange(t, at, time.Now(), time.Now().Add(2*time.Second), "the relay is woken when the pause ends")
			for range 3 {
				addEvents(t, db, other, 1)
				require.Equal(t, 1, relay(full).Rows)
			}
			endPauses(t, db)
			require.Equal(t, 1, relay(full).Rows, "one row is tried")
			require.Equal(t, 2, db.Count(t, `select failures from stream_pauses`))

			endPauses(t, db)
			published = nil
			drain("")
			require.True(t, slices.IsSortedFunc(published, func(a, b events.Due) int { return int(a.Seq - b.Seq) }), "in their order")
			require.Zero(t, db.Count(t, `select count(*) from event_outbox`))
			require.Zero(t, db.Count(t, `select count(*) from stream_pauses`))
		})
	}
}

func TestUnavailableEventsAreOvertaken(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	addEvents(t, db, "USERS", 4)
	_, first := db.Outbox(t)
	addEvents(t, db, "USERS", 1)
	var unavailable []task.ID
	relay := func() (published []task.ID, relayed store.Relayed) {
		relayed, err := db.Events.Relay(t.Context(), "", 4, func(_ context.Context, due []events.Due) ([]msg.Result, error) {
			return store.Column(due, func(e events.Due) msg.Result {
				published = append(published, e.Subject)
				if slices.Contains(unavailable, e.Subject) {
					return storetest.SubjectFull
				}
				return storetest.Accepted
			}), nil
		})
		require.NoError(t, err)
		return published, relayed
	}
	unavailable = slices.Concat(first...)
	published, relayed := relay()
	require.Equal(t, unavailable, published)
	require.True(t, relayed.More)
	require.Len(t, relayed.NextTries, 4)
	_, relayed = relay()
	require.Equal(t, 1, relayed.Rows, "the fifth is published")
	require.Equal(t, 4, db.Count(t, `select count(*) from event_outbox where next_at > now()`))
	at, err := db.Events.NextRelay(t.Context())
	require.NoError(t, err)
	require.WithinRange(t, at, time.Now(), time.Now().Add(3*time.Second))
	db.Exec(t, `update event_outbox set next_at = now()`)
	unavailable = nil
	relay()
	require.Zero(t, db.Count(t, `select count(*) from event_outbox`))
}

func TestNoRowIsUpdatedWhileTheBrokerIsUnavailable(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	addEvents(t, db, "USERS", 2)
	addEvents(t, db, "EVENTS", 2)
	before := rowVersions(t, db, "USERS") + rowVersions(t, db, "EVENTS")
	for range 3 {
		relayed, err := db.Events.Relay(t.Context(), "", 4, func(_ context.Context, due []events.Due) ([]msg.Result, error) {
			return slices.Repeat([]msg.Result{storetest.NoBroker}, len(due)), nil
		})
		require.NoError(t, err)
		require.True(t, relayed.BrokerUnavailable)
	}
	require.Equal(t, before, rowVersions(t, db, "USERS")+rowVersions(t, db, "EVENTS"))
	require.Equal(t, 2, db.Count(t, `select count(*) from stream_pauses where failures = 0 and until <= now()`), "nothing is paused")
}

// However many messages wait for a full stream, messages for another stream cost the same, and waiting messages are not
// updated.
func TestBacklogDoesNotSlowOtherMessages(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db, conn := storetest.OpenAt(t, url), storetest.ConnectAs(t, url, "sendonce_hot")
	for _, name := range []string{"anyMessageDueSQL", "lockDueMessagesSQL", "nextRelaySQL"} {
		_, err := conn.Exec(t.Context(), `prepare `+name+` as `+storetest.Statements(t)[name])
		require.NoError(t, err)
	}
	countBlocks := func() (blocks int) {
		for _, call := range []string{"anyMessageDueSQL", "lockDueMessagesSQL(500, 16, array[]::text[], array[]::bigint[])", "nextRelaySQL"} {
			blocks += storetest.CountBlocks(t, conn, "execute "+call)
		}
		return blocks
	}
	db.MustSave(t, storetest.Message("first"))
	countBlocks() // the first run also reads the system catalogue
	idle := countBlocks()
	const n = 10_000
	db.InsertMessages(t, n)
	b := brokerWithFull(msg.StreamUsers)
	require.Equal(t, 1+100/2, db.RelayDue(t, b).Rows, "the first message, and half of the batch for the full stream")
	for i := range 5 {
		endPauses(t, db)
		good := storetest.Message(fmt.Sprint("good ", i), func(m *messages.Submission) { m.Confirm = false })
		db.MustSave(t, good)
		require.Equal(t, store.ProbeMessages+1, db.RelayDue(t, b).Rows)
		require.Equal(t, "sent", db.MustMessage(t, good.ID).State())
	}
	db.MustSave(t, storetest.Message("last"))
	waiting := countBlocks()
	t.Logf("blocks read for one message: %d with nothing else, %d with %d messages waiting", idle, waiting, n)
	require.Less(t, waiting, idle+50, "the larger index has a level or two more")
	require.Zero(t, db.Count(t, `select count(*) from message_live where stream = 'USERS' and updated_at <> (select min(updated_at) from message_live where stream = 'USERS')`))
}
