package e2e

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/inbox"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// waitLimit bounds a wait for what must happen.
const waitLimit = time.Minute

// postOffice is messages and relay as processes, with NATS and a trigger.
type postOffice struct {
	t       *testing.T
	nats    *sandbox.NATS
	options sandbox.NATSOptions
	url     string
	bin     string
	env     []string
	client  *api.Client
	looker  *server
	relay   *sandbox.Process
}

func newMessages(t *testing.T) *postOffice {
	t.Helper()
	o := newCluster(t)
	o.client = api.NewClient(o.start("messages"), "admin", "secret")
	return o
}

// newCluster is one where no function runs yet.
func newCluster(t *testing.T) *postOffice {
	t.Helper()
	return newClusterOn(t, sandbox.NewDatabase(t))
}

func newClusterOn(t *testing.T, url string) *postOffice {
	t.Helper()
	o := &postOffice{t: t, options: sandbox.NATSOptions{Dir: t.TempDir()}, url: url, bin: binary(t)}
	o.nats = natsIn(t, o.options)
	o.options.Port = o.nats.Port()
	o.env = settings(o.url, "NATS_URL="+o.nats.URL())
	o.looker = (&server{t: t}).connect(o.url)
	return o
}

// start runs one function, or all for "", and gives its address.
func (o *postOffice) start(function string, env ...string) string {
	o.t.Helper()
	p := startProcess(o.t, o.bin, slices.Concat(o.env, env, []string{"FUNCTION_TARGET=" + function}))
	if function == "relay" {
		o.relay = p
	}
	return address(o.t, p)
}

// startRelay starts the relay, and a trigger that wakes it.
func (o *postOffice) startRelay() {
	o.t.Helper()
	o.trigger(o.start("relay"))
}

// trigger starts one that wakes the functions at an address.
func (o *postOffice) trigger(at string) {
	o.t.Helper()
	startProcess(o.t, o.bin, append(slices.Clone(o.env), "SENDONCE_FUNCTIONS_URL="+at), "trigger")
}

// at is the function at an address as an admin sees it.
func (o *postOffice) at(address string) *server {
	return &server{t: o.t, url: address, user: "admin", password: "secret"}
}

// tick wakes an event function past the trigger, as a platform's timer would.
func (s *server) tick(function string) reply {
	return s.do("POST", "/events/"+function, `{}`, "Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "test", "Ce-Type", "tick")
}

// jetStream is the server as its own clients see it.
func (o *postOffice) jetStream() jetstream.JetStream {
	o.t.Helper()
	nc, err := nats.Connect(o.nats.URL())
	require.NoError(o.t, err)
	o.t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(o.t, err)
	return js
}

func (o *postOffice) save(to string, change ...func(*api.MessageRequest)) string {
	o.t.Helper()
	req := api.MessageRequest{ClientMsgID: api.NewKey(), To: to, Data: []byte(`{"order":4711}`)}
	for _, c := range change {
		c(&req)
	}
	saved, err := o.client.SubmitMessage(o.t.Context(), req)
	require.NoError(o.t, err)
	require.Equal(o.t, "saved", saved.Ack)
	return saved.ServerMsgID
}

func (o *postOffice) state(id string) api.MessageResponse {
	o.t.Helper()
	m, err := o.client.Message(o.t.Context(), id)
	require.NoError(o.t, err)
	return m
}

func (o *postOffice) until(id, state string) api.MessageResponse {
	o.t.Helper()
	require.Eventually(o.t, func() bool { return o.state(id).State == state }, waitLimit, 10*time.Millisecond, state)
	return o.state(id)
}

// storedMessages gives what the stream of messages holds, oldest first.
func storedMessages(o *postOffice, n int) []*jetstream.RawStreamMsg {
	o.t.Helper()
	stream, err := o.jetStream().Stream(o.t.Context(), "MESSAGES")
	require.NoError(o.t, err)
	info, err := stream.Info(o.t.Context())
	require.NoError(o.t, err)
	require.EqualValues(o.t, n, info.State.Msgs)
	var all []*jetstream.RawStreamMsg
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq; seq++ {
		m, err := stream.GetMsg(o.t.Context(), seq)
		require.NoError(o.t, err)
		all = append(all, m)
	}
	return all
}

func once(r *api.MessageRequest) { r.Confirm = new(bool) } // at its end when sent

// requireSentOnce says that n messages to subjects, and no others, are at their ends
// after one send and in the stream once each.
func requireSentOnce(o *postOffice, n int) {
	o.t.Helper()
	require.Eventually(o.t, func() bool { return o.looker.count(`select count(*) from message_live`) == 0 }, waitLimit, 20*time.Millisecond)
	require.Equal(o.t, n, o.looker.count(`select count(*) from message_done d join messages m using (id)
		where m.kind = 0 and d.status = 1 and d.epoch = 1 and d.send_no = 1 and d.remaining_sends = m.max_sends - 1`), "one send each was used")
	seen := map[string]int{}
	for _, m := range storedMessages(o, n) {
		seen[m.Header.Get("ce-id")]++
	}
	require.Len(o.t, seen, n, "each is there once")
}

// newPointsService is the service of points, which acts on orders; it tells how often it
// did.
func newPointsService(o *postOffice) (*inbox.Receiver, func() int) {
	o.t.Helper()
	db, err := pgxpool.New(o.t.Context(), sandbox.NewEmptyDatabase(o.t))
	require.NoError(o.t, err)
	o.t.Cleanup(db.Close)
	_, err = db.Exec(o.t.Context(), inbox.DDL+`create table effects (message_id text)`)
	require.NoError(o.t, err)
	caller := o.looker.receiver("points", "msg.orders.>")
	confirmer := inbox.Confirmer{BaseURL: o.client.BaseURL, User: caller.user, Password: caller.password, Consumer: "points"}
	receiver := &inbox.Receiver{
		DB: db, Consumer: "points", Confirm: confirmer.Confirm,
		Effect: func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
			_, err := tx.Exec(ctx, `insert into effects values ($1)`, m.ID)
			return err
		},
	}
	return receiver, func() (n int) {
		require.NoError(o.t, db.QueryRow(o.t.Context(), `select count(*) from effects`).Scan(&n))
		return n
	}
}

// consume feeds what the stream of messages has, or gets from now on, to r.
func consume(o *postOffice, r *inbox.Receiver, from jetstream.DeliverPolicy) jetstream.Consumer {
	o.t.Helper()
	consumer, err := o.jetStream().CreateConsumer(o.t.Context(), "MESSAGES",
		jetstream.ConsumerConfig{DeliverPolicy: from, AckPolicy: jetstream.AckExplicitPolicy})
	require.NoError(o.t, err)
	ctx := context.WithoutCancel(o.t.Context())
	running, err := consumer.Consume(func(m jetstream.Msg) {
		if _, err := r.Receive(ctx, inbox.Message{ID: m.Headers().Get("ce-id"), Data: m.Data()}); err == nil {
			_ = m.Ack() // one that is lost brings the message again
		}
	})
	require.NoError(o.t, err)
	o.t.Cleanup(func() { running.Stop(); <-running.Closed() })
	return consumer
}

func TestAMessageReachesItsStreamAndIsReceivedOnceConfirmed(t *testing.T) {
	t.Parallel()
	o := newMessages(t)
	o.startRelay()
	id := o.save("msg.orders.paid", func(r *api.MessageRequest) { r.Type = "order.paid.v1" })
	o.until(id, "sent")
	m := storedMessages(o, 1)[0]
	require.Equal(t, id, m.Header.Get("ce-id"), "the id travels as the event's")
	require.Equal(t, "order.paid.v1", m.Header.Get("ce-type"))
	require.Regexp(t, "^"+id+`\.[0-9a-f]{8}\.1\.1$`, m.Header.Get("Nats-Msg-Id"))
	require.JSONEq(t, `{"order":4711}`, string(m.Data))
	for range 2 {
		require.NoError(t, o.client.ConfirmMessage(t.Context(), id))
	}
	require.Equal(t, "received", o.state(id).State)

	user := o.save("user:bob")
	require.Equal(t, "sent", o.until(user, "sent").State, "a user's message ends in the inbox")
}

func TestATypoInASubjectIsStuckWithItsReasonUntilAStreamTakesItAndItIsRedriven(t *testing.T) {
	t.Parallel()
	o := newMessages(t)
	o.startRelay()
	office, sends := o.at(o.client.BaseURL), 1
	typo := o.save("ordres.paid", func(r *api.MessageRequest) { r.MaxSends = &sends })
	good := o.save("msg.orders.paid")
	o.until(good, "sent")
	stuck := func() []any { return office.get("/api/v1/messages/stuck?kind=sending").data("items").([]any) }
	require.Eventually(t, func() bool { return len(stuck()) == 1 }, waitLimit, 10*time.Millisecond)
	const reason = "no stream takes the subject ordres.paid"
	listed := stuck()[0].(map[string]any)
	require.Equal(t, typo, listed["server_msg_id"])
	require.Contains(t, listed["last_error"], reason)
	require.EqualValues(t, 0, listed["remaining_sends"])

	redrive := "/api/v1/messages/" + typo + "/redrive"
	require.Equal(t, 200, office.post(redrive, "").status)
	require.Eventually(t, func() bool { return o.state(typo).Stuck }, waitLimit, 10*time.Millisecond, "there is still no such stream")
	require.Equal(t, 2, o.state(typo).Epoch)
	require.Contains(t, o.state(typo).LastError, reason)

	ordres, err := o.jetStream().CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDRES", Subjects: []string{"ordres.>"}})
	require.NoError(t, err)
	require.Equal(t, 200, office.post(redrive, "").status)
	require.Empty(t, o.until(typo, "sent").LastError)
	require.Empty(t, stuck())
	taken, err := ordres.GetLastMsgForSubject(t.Context(), "ordres.paid")
	require.NoError(t, err)
	require.Equal(t, typo, taken.Header.Get("ce-id"))
}

func TestABrokerThatIsAwayUsesNoSendUp(t *testing.T) {
	t.Parallel()
	o := newMessages(t)
	o.startRelay()
	o.until(o.save("msg.orders.paid"), "sent")
	require.NoError(t, o.nats.Stop())
	id := o.save("msg.orders.paid")
	relayed := o.at(o.start("relay")).tick("relay")
	require.Equal(t, 204, relayed.status, relayed.text)
	away := o.state(id)
	require.Equal(t, "sending", away.State)
	require.Equal(t, away.MaxSends, away.RemainingSends, "no send was used")

	o.nats = natsIn(t, o.options)
	o.until(id, "sent")
	storedMessages(o, 2)
}

// holdChange has every change of one kind wait, such as "update on message_live",
// until release. held waits until one does.
func holdChange(s *server, change string) (held, release func()) {
	s.exec(`create function wait_here() returns trigger language plpgsql as $$
		begin perform pg_advisory_xact_lock(42); return case tg_op when 'DELETE' then old else new end; end $$;
		create trigger wait_here before ` + change + ` for each row execute function wait_here()`)
	s.exec(`select pg_advisory_lock(42)`)
	held = func() {
		s.t.Helper()
		require.Eventually(s.t, func() bool {
			return s.count(`select count(*) from pg_locks where locktype = 'advisory' and not granted and `+here) > 0
		}, waitLimit, time.Millisecond, change)
	}
	return held, func() { s.exec(`select pg_advisory_unlock(42)`) }
}

// here are the locks in this database.
const here = `database = (select oid from pg_database where datname = current_database())`

// killRelay kills the relay that hold stopped. Its connection dies with it: what
// it sent ahead must not be run.
func killRelay(o *postOffice, relay *sandbox.Process) {
	o.t.Helper()
	require.NoError(o.t, relay.Kill())
	o.looker.exec(`select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and not granted and ` + here)
}

func TestARelayKilledBetweenPublishAndMarkHasSentOnce(t *testing.T) {
	t.Parallel()
	o := newMessages(t)
	points, effects := newPointsService(o)
	o.startRelay()
	o.until(o.save("msg.orders.paid"), "sent") // all is up
	held, release := holdChange(o.looker, "update on message_live")
	id := o.save("msg.orders.paid")
	held()
	storedMessages(o, 2)
	killRelay(o, o.relay)
	release()
	require.Equal(t, "sending", o.state(id).State, "nothing was marked")

	o.startRelay()
	o.until(id, "sent")
	require.Regexp(t, id+`\.[0-9a-f]{8}\.1\.1$`, storedMessages(o, 2)[1].Header.Get("Nats-Msg-Id"), "the same send again is the same to the broker")
	consume(o, points, jetstream.DeliverAllPolicy)
	o.until(id, "received")
	require.Eventually(t, func() bool { return effects() == 2 }, waitLimit, 10*time.Millisecond)
	require.Zero(t, o.looker.count(`select count(*) from message_live`), "none is to be sent again")
	storedMessages(o, 2)
}

// rememberMarks keeps what statuses each message goes through.
func rememberMarks(s *server) {
	s.exec(`create table history (n bigserial, id uuid, status int);
		create function remember() returns trigger language plpgsql security definer as $$
			begin insert into history (id, status) values (new.id, new.status); return null; end $$;
		create trigger remember after insert or update on message_live for each row execute function remember();
		create trigger remember after insert or update on message_done for each row execute function remember()`)
}

func TestAReceiverMayConfirmBeforeTheRelayHasMarkedWhatItPublished(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		killed bool
	}{
		"and the relay goes on": {false},
		"and the relay dies":    {true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newMessages(t)
			points, effects := newPointsService(o)
			o.startRelay()
			first := o.save("msg.orders.paid")
			o.until(first, "sent")
			consume(o, points, jetstream.DeliverAllPolicy)
			o.until(first, "received") // all is up
			rememberMarks(o.looker)
			held, release := holdChange(o.looker, "update on message_live")
			id := o.save("msg.orders.paid")
			held()
			require.Eventually(t, func() bool {
				return o.looker.count(`select count(*) from pg_stat_activity
					where datname = current_database() and wait_event_type = 'Lock' and wait_event <> 'advisory'`) > 0
			}, waitLimit, time.Millisecond, "the confirmation waits for the relay")
			require.Equal(t, 2, effects(), "the receiver has acted already")
			require.Equal(t, "sending", o.state(id).State)
			if c.killed {
				killRelay(o, o.relay)
			}
			release()
			relay := o.at(o.start("relay"))
			require.Eventually(t, func() bool { // a relay leaves a message to the confirmation that has its lock
				require.Equal(t, 204, relay.tick("relay").status)
				return o.state(id).State != "sending"
			}, waitLimit, 10*time.Millisecond)

			require.Equal(t, "points", o.until(id, "received").FinishedBy, "it repeats the confirmation until the send is recorded")
			require.Equal(t, "0,1,2", o.looker.text(`select string_agg(status::text, ',' order by n) from history where id = $1`, id), "it never moves back")
			storedMessages(o, 2)
			require.Equal(t, 2, effects())
		})
	}
}

func TestTwoRelaysSendEachMessageOnce(t *testing.T) {
	t.Parallel()
	o := newMessages(t)
	const n = 40
	ids := make([]string, n)
	for i := range ids {
		ids[i] = o.save("msg.orders.paid")
	}
	o.startRelay()
	o.startRelay()
	for _, id := range ids {
		o.until(id, "sent")
	}
	storedMessages(o, n)
}
