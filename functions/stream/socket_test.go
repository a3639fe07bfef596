package stream_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
)

func fieldNames(fields []api.Field) (names []string) {
	for _, f := range fields {
		names = append(names, f.Field)
	}
	return names
}

func TestTwoUsersChatOverSockets(t *testing.T) {
	t.Parallel()
	o := cluster.New(t)
	o.StartAll()
	s := o.Admin
	ann, bob := s.NewCaller("ann", "submitter"), s.NewCaller("bob", "receiver")
	annSocket, bobSocket, bobStream := cluster.OpenSocket(ann, "ann", nil), cluster.OpenSocket(bob, "bob", nil), cluster.OpenStream(bob, cluster.StreamsPath+"bob")
	for n := range 3 {
		text := fmt.Sprintf(`"第%d <句>"`, n)
		annSocket.Send(cluster.TextMessage(fmt.Sprint("c-", n), "user:bob", text))
		ack := annSocket.Ack()
		require.Equal(t, []any{"saved", "ann", fmt.Sprint("c-", n), "sending", false}, []any{ack.AckType, ack.From, ack.ClientMsgID, ack.State, ack.Replayed})
		require.WithinDuration(t, time.Now(), *ack.SavedAt, time.Minute)
		id, event := bobSocket.Message()
		require.Equal(t, ack.ServerMsgID, event.ID())
		require.Equal(t, "/sendonce/messages/ann", event.Source())
		require.JSONEq(t, text, string(event.Data()))
		received := bobStream.Event()
		require.Equal(t, fmt.Sprint(id), received.ID)
		require.JSONEq(t, received.Data, string(mustJSON(t, event)), "the same event on both")
		require.Equal(t, "sent", o.WaitMessage(ack.ServerMsgID, "sent").State)
	}
	bobSocket.Send(cluster.TextMessage("re", "user:ann", `1`))
	refused := bobSocket.Refusal()
	require.Equal(t, []any{403, "forbidden", "this needs the role submitter", "re"}, []any{refused.Code, refused.Error, refused.Message, refused.ClientMsgID})

	all := cluster.OpenSocket(bob, "bob", new(int64))
	first, _ := all.Message()
	second, event := all.Message()
	next, same := cluster.OpenSocket(bob, "bob", &first).Message()
	require.Equal(t, []any{second, event.ID()}, []any{next, same.ID()}, "the socket resumes after an event")
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return text
}

func TestSocketFrameFollowsRulesOfPost(t *testing.T) {
	t.Parallel()
	cluster.OnBothServers(t, requireFramesLikePosts)
}

// requireFramesLikePosts checks that a frame gets the same result or refusal as a POST of the same message.
func requireFramesLikePosts(t *testing.T, h cluster.Host) {
	s, _ := h.ServeWithNATS(t)
	s.Post("/api/v1/admin/blocked-words", `{"word":"casino"}`).RequireOK()
	ann := s.NewCaller("ann", "submitter")
	c := cluster.OpenSocket(ann, "ann", nil)
	saved, accepted := cluster.TextMessage("saved", "user:bob", `"hi"`), cluster.TextMessage("accepted", "user:bob", `"hi"`)
	accepted.Ack = "accepted"

	c.Send(saved)
	first := c.Ack()
	require.Equal(t, "saved", first.AckType)
	posted := ann.Post(cluster.MessagesPath, string(mustJSON(t, saved)))
	require.Equal(t, first.ServerMsgID, posted.Data("server_msg_id"))
	require.Equal(t, "true", posted.Header.Get("Idempotency-Replayed"), "the POST repeats the message of the frame")
	c.Send(saved)
	again := c.Ack()
	require.True(t, again.Replayed)
	require.Equal(t, []any{first.ServerMsgID, first.SavedAt}, []any{again.ServerMsgID, again.SavedAt})

	c.Send(accepted)
	early := c.Ack()
	require.Equal(t, []any{"accepted", "process", "accepted"}, []any{early.AckType, early.Durability, early.State})
	require.Positive(t, early.AcceptSeq)
	require.Nil(t, early.SavedAt, "it is not saved yet")
	require.Zero(t, s.Count(`select count(*) from messages where id = $1`, early.ServerMsgID))
	c.Send(accepted)
	require.True(t, c.Ack().Replayed)

	changed := saved
	changed.Data = api.JSON(`"ho"`)
	blocked, foreign, large, bad := cluster.TextMessage("blocked", "user:bob", `"a casino"`), cluster.TextMessage("foreign", "user:bob", `1`), cluster.TextMessage("large", "user:bob", `"`+strings.Repeat("x", 64<<10)+`"`), cluster.TextMessage("bad", "wake.relay", `1`)
	foreign.From, bad.MaxSends = "bob", new(21)
	var codes []int
	for _, r := range []api.MessageRequest{changed, blocked, foreign, large, bad} {
		c.Send(r)
		refused, posted := c.Refusal(), ann.Post(cluster.MessagesPath, string(mustJSON(t, r)))
		codes = append(codes, refused.Code)
		require.Equal(t, posted.Status, refused.Code, posted.Text)
		require.Equal(t, []any{posted.Body["error"], posted.Body["message"]}, []any{refused.Error, refused.Message})
		require.ElementsMatch(t, posted.Fields(), fieldNames(refused.Fields))
		require.Equal(t, r.ClientMsgID, refused.ClientMsgID)
	}
	require.Equal(t, []int{422, 400, 403, 413, 400}, codes)
	admin := cluster.OpenSocket(s, "ann", nil)
	admin.Send(cluster.TextMessage("of-the-admin", "user:bob", `1`))
	require.Equal(t, "ann", admin.Ack().From, "the sender is the user of the socket")

	_, err := api.NewClient(s.URL, ann.User, ann.Password).Socket(t.Context(), "bob", api.StreamRequest{})
	var refused *api.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, 403, refused.Status)
	_, err = api.NewClient(s.URL, ann.User, ann.Password).Socket(t.Context(), "ann", api.StreamRequest{After: new(int64(-1))})
	require.ErrorAs(t, err, &refused)
	require.Equal(t, []string{"Last-Event-ID"}, fieldNames(refused.Fields))
}

// socketLoad is the client of a user. It connects again whenever its socket breaks, resumes after the last
// event and sends every unacknowledged message again.
type socketLoad struct {
	t      *testing.T
	client func() *api.Client // of the process that serves stream now
	user   string
	toSend []api.MessageRequest

	mu         sync.Mutex
	ids        map[string]map[string]bool // all server_msg_ids of the responses, by client_msg_id
	lateAcks   map[string]string          // by client_msg_id: ack_type of its late acknowledgement (an ack that is an event)
	messages   map[string]int             // how often each message was received, by id
	reconnects int
}

// run sends and receives until ctx ends, with at most maxUnacknowledged frames that have no response yet.
func (e *socketLoad) run(ctx context.Context, maxUnacknowledged int) {
	after := new(int64)
	for ; ctx.Err() == nil; e.reconnects++ {
		socket, err := e.client().Socket(ctx, e.user, api.StreamRequest{After: after})
		if err != nil {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		slots := make(chan struct{}, maxUnacknowledged)
		sendCtx, stopSending := context.WithCancel(ctx)
		var sending sync.WaitGroup
		sending.Go(func() {
			for _, r := range e.unacknowledged() {
				select {
				case slots <- struct{}{}:
				case <-sendCtx.Done():
					return
				}
				if socket.Send(sendCtx, r) != nil {
					return
				}
			}
		})
		for {
			f, err := socket.Next(ctx)
			if err != nil {
				break
			}
			e.record(f)
			if f.ID == nil { // the response to a sent frame; events and marks have an ID
				<-slots
			}
		}
		stopSending()
		sending.Wait()
		after = socket.After()
	}
}

// unacknowledged returns the messages that have no response yet.
func (e *socketLoad) unacknowledged() []api.MessageRequest {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(e.toSend), func(r api.MessageRequest) bool { return e.ids[r.ClientMsgID] != nil })
}

func (e *socketLoad) record(f api.SocketFrame) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var ack api.SocketAck
	var event struct{ ID string }
	var err error
	switch f.Event {
	case api.StreamAck:
		err = json.Unmarshal(f.Data, &ack)
		if f.ID != nil {
			e.lateAcks[ack.ClientMsgID] = ack.AckType
			break
		}
		if e.ids[ack.ClientMsgID] == nil {
			e.ids[ack.ClientMsgID] = map[string]bool{}
		}
		e.ids[ack.ClientMsgID][ack.ServerMsgID] = true
	case api.StreamMessage:
		err = json.Unmarshal(f.Data, &event)
		e.messages[event.ID]++
	case api.SocketError:
		err = errors.New(string(f.Data))
	}
	if err != nil {
		e.t.Error(err)
	}
}

func newSocketLoad(t *testing.T, user string, client func() *api.Client) *socketLoad {
	return &socketLoad{t: t, user: user, client: client, ids: map[string]map[string]bool{}, lateAcks: map[string]string{}, messages: map[string]int{}}
}

func TestKilledFunctionLosesNoSocketMessage(t *testing.T) {
	t.Parallel()
	o := cluster.New(t)
	o.StartAll("TWO_PHASE_ENABLED=true")
	s := o.Admin
	ann, bob := s.NewCaller("ann", "submitter"), s.NewCaller("bob", "receiver")
	restart := func() { o.Start("stream", "TWO_PHASE_ENABLED=true") }
	clientOf := func(caller *cluster.Client) func() *api.Client {
		return func() *api.Client { return api.NewClient(o.Address("stream"), caller.User, caller.Password) }
	}
	restart()
	const n = 400
	sender, receiver := newSocketLoad(t, "ann", clientOf(ann)), newSocketLoad(t, "bob", clientOf(bob))
	for i := range n {
		r := cluster.TextMessage(fmt.Sprint("c-", i), "user:bob", fmt.Sprint(i))
		r.Ack = []string{"accepted", "saved"}[i%2]
		sender.toSend = append(sender.toSend, r)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	defer stop()
	var running sync.WaitGroup
	running.Go(func() { sender.run(ctx, 16) })
	running.Go(func() { receiver.run(ctx, 1) })
	count := func(e *socketLoad, read func() int) int { e.mu.Lock(); defer e.mu.Unlock(); return read() }
	acknowledged := func() int { return count(sender, func() int { return len(sender.ids) }) }
	for _, killAt := range []int{n / 5, n / 2, n * 4 / 5} {
		cluster.Eventually(t, func() bool { return acknowledged() >= killAt })
		require.NoError(t, o.Process("stream").Kill())
		restart()
	}
	cluster.Eventually(t, func() bool {
		return acknowledged() == n && count(sender, func() int { return len(sender.lateAcks) }) >= n/2 && count(receiver, func() int { return len(receiver.messages) }) == n
	}, "all messages are acknowledged, saved and received")
	stop()
	running.Wait()
	require.GreaterOrEqual(t, sender.reconnects, 3)
	require.GreaterOrEqual(t, receiver.reconnects, 3)
	for key, ids := range sender.ids {
		require.Len(t, ids, 1, key)
		id := slices.Collect(maps.Keys(ids))[0]
		require.Positive(t, receiver.messages[id], "bob received the message under the id of its acknowledgement")
	}
	for _, ackType := range sender.lateAcks {
		require.Equal(t, "saved", ackType)
	}
	require.Equal(t, n, o.Admin.Count(`select count(*) from messages`), "each message is saved once")
}

func TestFrameOfArchivedMessageIsReplayed(t *testing.T) {
	t.Parallel()
	o := cluster.New(t)
	require.NoError(t, cluster.EnsureStreams(t, o.NATS.URL()))
	s := o.At(o.Start(cluster.All)) // without a trigger, whose sweep would archive at the same time as the sweep of the test
	c := cluster.OpenSocket(s, "ann", nil)
	message := api.MessageRequest{ClientMsgID: "c-1", To: "user:bob", Data: api.JSON(`1`)}
	c.Send(message)
	first := c.Ack()
	require.False(t, first.Archived)
	require.Equal(t, 204, s.Tick("relay").Status)
	require.Equal(t, 1, s.Count(`select count(*) from message_done`))
	s.Exec(`update message_done set finished_at = finished_at - interval '100 days'`)
	s.Exec(`update upkeep set begun_at = '-infinity'`)
	s.RunMaintenance()
	require.Equal(t, 1, s.Count(`select count(*) from archived_messages`))
	c.Send(message)
	again := c.Ack()
	require.Equal(t, first.ServerMsgID, again.ServerMsgID)
	require.True(t, again.Replayed)
	require.True(t, again.Archived)
}
