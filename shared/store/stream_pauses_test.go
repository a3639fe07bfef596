package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

// fullExcept refuses what is for a stream and takes the rest.
func fullExcept(stream string) *broker {
	return &broker{say: func(d DueMessage) msg.Result {
		if d.To().Stream() == stream {
			return isFull
		}
		return takes
	}}
}

// endPauses lets the time of all pauses pass.
func (db *DB) endPauses(t *testing.T) {
	t.Helper()
	db.exec(t, `update stream_pauses set until = now() - interval '1 second'`)
}

// written counts the live messages that were written after they were saved.
func (db *DB) written(t *testing.T) int {
	t.Helper()
	return db.count(t, `select count(*) from message_live l join messages m using (id) where l.xmin <> m.xmin`)
}

func TestFullStreamPausesAsAWhole(t *testing.T) {
	t.Parallel()
	for full, other := range map[string]string{msg.StreamUsers: msg.StreamMessages, msg.StreamMessages: msg.StreamUsers} {
		t.Run(full, func(t *testing.T) {
			t.Parallel()
			db := open(t)
			address := map[string]func(*NewMessage){msg.StreamUsers: to(msg.User, "bob"), msg.StreamMessages: to(msg.Subject, "msg.orders.paid")}
			var waiting []*NewMessage
			var sends []string
			for i := range 120 { // more than a batch
				waiting = append(waiting, reliable(fmt.Sprint(i), address[full]))
				db.mustSave(t, waiting[i])
				sends = append(sends, waiting[i].send("1.1"))
			}
			b := fullExcept(full)
			for failures := 1; failures <= 7; failures++ {
				began := time.Now()
				relayed := db.relayDue(t, b)
				require.False(t, relayed.More, "no call follows at once")
				if failures == 1 {
					require.Equal(t, []StreamChange{{full, isFull.Reason}}, relayed.Streams)
					paused, err := db.PausedStreams(t.Context())
					require.NoError(t, err)
					require.Equal(t, []string{full}, paused)
				} else {
					require.Empty(t, relayed.Streams, "it was paused before")
				}
				require.Len(t, relayed.Again, 1)
				require.WithinDuration(t, began.Add(msg.StreamPause(failures)), relayed.Again[0], time.Second)
				require.Zero(t, db.relayDue(t, b).Rows, "nothing is tried during the pause")
				at, err := db.NextRelay(t.Context())
				require.NoError(t, err)
				require.True(t, relayed.Again[0].Equal(at), "the relay is woken at its end")

				good := reliable("good "+fmt.Sprint(failures), address[other], func(m *NewMessage) { m.Confirm = false })
				db.mustSave(t, good)
				require.Equal(t, 1, db.relayDue(t, b).Rows)
				require.Equal(t, "sent", db.mustMessage(t, good.ID).State(), "the other stream goes on")
				db.endPauses(t)
			}
			require.Zero(t, db.written(t), "nothing that waits was written")
			require.Equal(t, isFull.Reason, db.mustMessage(t, waiting[119].ID).LastError, "a reader of any of them sees why")

			taken := always(takes)
			require.Equal(t, Relayed{Rows: probeMessages, More: true, Streams: []StreamChange{{Stream: full}}}, withoutTimes(db.relayDue(t, taken)), "a few are tried first")
			for db.relayDue(t, taken).More {
			}
			require.Equal(t, sends, taken.msgIDs(), "all are sent, in their order")
			require.Zero(t, db.count(t, `select count(*) from stream_pauses`))
		})
	}
}

func withoutTimes(r Relayed) Relayed { r.Again = nil; return r }

func TestStreamThatTookSomethingIsPausedBriefly(t *testing.T) {
	t.Parallel()
	db := open(t)
	for i := range 3 {
		db.mustSave(t, reliable(fmt.Sprint(i), to(msg.User, "bob")))
	}
	for range 5 {
		db.relayDue(t, always(isFull))
		db.endPauses(t)
	}
	room := 1
	db.relayDue(t, &broker{say: func(DueMessage) msg.Result {
		if room--; room >= 0 {
			return takes
		}
		return isFull
	}})
	require.Equal(t, 1, db.count(t, `select failures from stream_pauses`))
}

func TestSubjectThatTakesNoMoreIsOvertaken(t *testing.T) {
	t.Parallel()
	db := open(t)
	bad, good := reliable("bad", to(msg.User, "ann")), reliable("good", to(msg.User, "bob"))
	db.mustSave(t, bad)
	db.mustSave(t, good)
	b := &broker{say: func(d DueMessage) msg.Result {
		if d.ID == bad.ID {
			return isAway
		}
		return takes
	}}
	db.exec(t, `update messages set created_at = now() - interval '30 seconds'`)
	relayed := db.relayDue(t, b)
	require.Equal(t, "sent", db.mustMessage(t, good.ID).State())
	require.Zero(t, db.count(t, `select count(*) from stream_pauses`), "its stream goes on")
	require.WithinRange(t, slices.MinFunc(relayed.Again, time.Time.Compare), time.Now().Add(5*time.Second), time.Now().Add(31*time.Second), "the pause grows with what it waited")
}

func TestARedriveFindsTheStreamOfItsMessage(t *testing.T) {
	t.Parallel()
	db := open(t)
	addresses := []func(*NewMessage){
		to(msg.User, "bob"), to(msg.Subject, "msg.a.b"), to(msg.Subject, "orders.paid"), to(msg.Subject, "payments"), to(msg.URL, "https://a.example/x"),
	}
	for i, address := range addresses {
		m := reliable(fmt.Sprint(i), address)
		db.mustSave(t, m)
		stream := func() (name string) {
			require.NoError(t, db.owner(t).QueryRow(t.Context(), `select stream from message_live where id = $1`, m.ID).Scan(&name))
			return name
		}
		require.Equal(t, m.To.Stream(), stream())
		_, err := db.AbandonMessage(t.Context(), m.ID, Operator{Name: "ops"})
		require.NoError(t, err)
		_, err = db.RedriveMessage(t.Context(), m.ID, Operator{Name: "ops"})
		require.NoError(t, err)
		require.Equal(t, m.To.Stream(), stream())
	}
}

// ackEvents and taskEvents write rows of the outbox for either stream.
func (db *DB) ackEvents(t *testing.T, rows int) {
	t.Helper()
	for range rows {
		db.exec(t, `insert into event_outbox (kind, ids) values ('message.saved', array[gen_random_uuid()])`)
	}
}

func (db *DB) taskEvents(t *testing.T, rows int) {
	t.Helper()
	for range rows {
		db.exec(t, `insert into event_outbox (kind, ids) values ('task.succeeded', array[gen_random_uuid(), gen_random_uuid()])`)
	}
}

// versions names the versions of the rows of the outbox for a stream.
func (db *DB) versions(t *testing.T, stream string) (all string) {
	t.Helper()
	require.NoError(t, db.owner(t).QueryRow(t.Context(),
		`select string_agg(id || ':' || xmin, ' ' order by id) from event_outbox where stream = $1`, stream).Scan(&all))
	return all
}

func TestEventsOfOneStreamDoNotWaitForAnother(t *testing.T) {
	t.Parallel()
	for full, other := range map[string]string{"USERS": "EVENTS", "EVENTS": "USERS"} {
		t.Run(full, func(t *testing.T) {
			t.Parallel()
			db := open(t)
			add := map[string]func(*testing.T, int){"USERS": db.ackEvents, "EVENTS": db.taskEvents}
			add[full](t, 20) // far more than a batch, and first
			add[other](t, 5)
			var told []DueEvent
			relay := func(except string) Relayed {
				t.Helper()
				relayed, err := db.RelayEvents(t.Context(), 4, func(_ context.Context, due []DueEvent) ([]msg.Result, error) {
					return column(due, func(e DueEvent) msg.Result {
						if e.stream == except {
							return isFull
						}
						told = append(told, e)
						return takes
					}), nil
				})
				require.NoError(t, err)
				return relayed
			}
			drain := func(except string) {
				t.Helper()
				for relay(except).More {
				}
			}
			before := db.versions(t, full)
			drain(full)
			require.Zero(t, db.count(t, `select count(*) from event_outbox where stream = $1`, other), "all of the other stream is told")
			require.Equal(t, 20, db.count(t, `select count(*) from event_outbox`))
			require.Equal(t, before, db.versions(t, full), "what waits is not written")
			at, err := db.NextRelay(t.Context())
			require.NoError(t, err)
			require.WithinRange(t, at, time.Now(), time.Now().Add(2*time.Second), "the relay is woken when the pause ends")
			for range 3 {
				add[other](t, 1)
				require.Equal(t, 1, relay(full).Rows)
			}
			db.endPauses(t)
			require.Equal(t, 1, relay(full).Rows, "one row is tried")
			require.Equal(t, 2, db.count(t, `select failures from stream_pauses`))

			db.endPauses(t)
			told = nil
			drain("")
			require.True(t, slices.IsSortedFunc(told, func(a, b DueEvent) int { return int(a.Seq - b.Seq) }), "in their order")
			require.Zero(t, db.count(t, `select count(*) from event_outbox`))
			require.Zero(t, db.count(t, `select count(*) from stream_pauses`))
		})
	}
}

func TestEventsAwayByThemselvesAreOvertaken(t *testing.T) {
	t.Parallel()
	db := open(t)
	db.ackEvents(t, 4)
	_, first := db.outbox(t)
	db.ackEvents(t, 1)
	var away []task.ID
	relay := func(limit int) (seen []task.ID, relayed Relayed) {
		relayed, err := db.RelayEvents(t.Context(), limit, func(_ context.Context, due []DueEvent) ([]msg.Result, error) {
			return column(due, func(e DueEvent) msg.Result {
				seen = append(seen, e.Subject)
				if slices.Contains(away, e.Subject) {
					return isAway
				}
				return takes
			}), nil
		})
		require.NoError(t, err)
		return seen, relayed
	}
	away = slices.Concat(first...)
	seen, relayed := relay(4)
	require.Equal(t, away, seen)
	require.True(t, relayed.More)
	require.Len(t, relayed.Again, 4)
	_, relayed = relay(4)
	require.Equal(t, 1, relayed.Rows, "the fifth is told")
	require.Equal(t, 4, db.count(t, `select count(*) from event_outbox where next_at > now()`))
	at, err := db.NextRelay(t.Context())
	require.NoError(t, err)
	require.WithinRange(t, at, time.Now(), time.Now().Add(3*time.Second))
	db.exec(t, `update event_outbox set next_at = now()`)
	away = nil
	relay(4)
	require.Zero(t, db.count(t, `select count(*) from event_outbox`))
}

func TestNothingIsWrittenWhileTheBrokerIsAway(t *testing.T) {
	t.Parallel()
	db := open(t)
	db.ackEvents(t, 2)
	db.taskEvents(t, 2)
	before := db.versions(t, "USERS") + db.versions(t, "EVENTS")
	for range 3 {
		relayed, err := db.RelayEvents(t.Context(), 4, func(_ context.Context, due []DueEvent) ([]msg.Result, error) {
			return slices.Repeat([]msg.Result{nobody}, len(due)), nil
		})
		require.NoError(t, err)
		require.True(t, relayed.Away)
	}
	require.Equal(t, before, db.versions(t, "USERS")+db.versions(t, "EVENTS"))
	require.Equal(t, 2, db.count(t, `select count(*) from stream_pauses where failures = 0 and until <= now()`), "nothing is paused")
}

// However much waits for a stream that takes nothing, what is for another one
// costs the same, and nothing that waits is written.
func TestMessagesCostTheSameWhateverWaits(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db, conn := openAt(t, url), asRole(t, url, "sendonce_hot")
	for _, name := range []string{"anyMessageDueSQL", "lockDueMessagesSQL", "nextRelaySQL"} {
		_, err := conn.Exec(t.Context(), `prepare `+name+` as `+statements(t)[name])
		require.NoError(t, err)
	}
	buffers := func() (blocks int) {
		for _, execute := range []string{"anyMessageDueSQL", "lockDueMessagesSQL(500, 16)", "nextRelaySQL"} {
			var text string
			require.NoError(t, conn.QueryRow(t.Context(), `explain (analyze, buffers, format json) execute `+execute).Scan(&text))
			var plan []struct{ Plan map[string]any }
			require.NoError(t, json.Unmarshal([]byte(text), &plan))
			blocks += int(plan[0].Plan["Shared Hit Blocks"].(float64) + plan[0].Plan["Shared Read Blocks"].(float64))
		}
		return blocks
	}
	db.mustSave(t, reliable("first"))
	buffers() // reads the catalogue
	idle := buffers()
	const n = 10_000
	saveMany(t, owner(t, url), n)
	b := fullExcept(msg.StreamUsers)
	require.Equal(t, 1+100/2, db.relayDue(t, b).Rows)
	for i := range 5 {
		db.endPauses(t)
		good := reliable(fmt.Sprint("good ", i), func(m *NewMessage) { m.Confirm = false })
		db.mustSave(t, good)
		require.Equal(t, probeMessages+1, db.relayDue(t, b).Rows)
		require.Equal(t, "sent", db.mustMessage(t, good.ID).State())
	}
	db.mustSave(t, reliable("last"))
	waiting := buffers()
	t.Logf("blocks read for one message: %d with nothing else, %d with %d messages waiting", idle, waiting, n)
	require.Less(t, waiting, idle+50, "the index is a page or two deeper, and that is all")
	require.Zero(t, db.count(t, `select count(*) from message_live where stream = 'USERS' and updated_at <> (select min(updated_at) from message_live where stream = 'USERS')`))
}
