package messages

import (
	"context"
	"net/http"
	"strings"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	pairRule   = "is required: two different names joined by a comma, such as ann,bob; each " + task.UserRule
	memberRule = "must be one of the two names in the parameter between"
)

// members are the two users of a conversation.
type members [2]string

// membersOf parses two names joined by a comma, the parameter between. ok is false if they do not fit pairRule.
func membersOf(between string) (pair members, ok bool) {
	a, b, _ := strings.Cut(between, ",")
	return members{a, b}, task.ValidUser(a) && task.ValidUser(b) && a != b
}

// other returns the other member; ok is false if name is not a member.
func (pair members) other(name string) (peer string, ok bool) {
	switch name {
	case pair[0]:
		return pair[1], true
	case pair[1]:
		return pair[0], true
	default:
		return "", false
	}
}

type conversationRequest api.ConversationRequest

func (r *conversationRequest) Validate() []task.Field {
	var bad decode.BadFields
	_, ok := membersOf(r.Between)
	bad.When(!ok, "between", pairRule)
	bad.PageByID(r.Limit, r.After)
	return bad
}

// conversation returns a page of the messages between two users. Only these two users and callers that read all messages
// (fn.Call.ReadsAll) may read the page.
func (h *handlers) conversation(ctx context.Context, c *fn.Call, req conversationRequest) (any, error) {
	pair, _ := membersOf(req.Between)
	if _, ok := pair.other(c.Caller.Name); !ok && !c.ReadsAll() {
		return nil, errNotMember()
	}
	after, _ := task.ParseID(req.After) // valid, or absent and zero
	found, err := h.env.Messages.Conversation(ctx, pair[0], pair[1], after, decode.PageLimit(req.Limit))
	if task.CodeOf(err) == task.CodeNotFound {
		return nil, task.Invalid([]task.Field{{Name: "after", Message: "must be the next_after of a page of this conversation"}})
	}
	if err != nil {
		return nil, err
	}
	page := pageOf(c, found.Messages, found.More)
	cursors := map[string]api.ReadCursor{pair[0]: readCursor(found.Read[0]), pair[1]: readCursor(found.Read[1])}
	return api.ConversationResponse{Items: page.Items, NextAfter: page.NextAfter, Read: cursors}, nil
}

func readCursor(c messages.ReadCursor) api.ReadCursor {
	cursor := api.ReadCursor{ReadAt: fn.Instant(c.ReadAt), Unread: c.Unread}
	if !c.UpTo.IsZero() {
		cursor.UpTo = c.UpTo.String()
	}
	return cursor
}

func errNotMember() error {
	return task.Refuse(task.CodeForbidden, "this caller is neither of the two users")
}

type peersRequest api.PeersRequest

func (r *peersRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.User("user", r.User)
	bad.PageByID(r.Limit, r.After)
	return bad
}

// peers returns a page of the users who wrote to a user. Only that user and callers that read all messages (fn.Call.ReadsAll)
// may read the page.
func (h *handlers) peers(ctx context.Context, c *fn.Call, req peersRequest) (any, error) {
	user := req.User
	if user == "" || !c.ReadsAll() {
		var err error
		if user, err = c.UserToActFor(req.User); err != nil {
			return nil, err
		}
	}
	after, _ := task.ParseID(req.After) // valid, or absent and zero
	peers, more, err := h.env.Messages.Peers(ctx, user, after, decode.PageLimit(req.Limit))
	if task.CodeOf(err) == task.CodeNotFound {
		return nil, task.Invalid([]task.Field{{Name: "after", Message: "must be the next_after of a page of this user"}})
	}
	if err != nil {
		return nil, err
	}
	return fn.PageOf(peers, more, peerResponse, func(p messages.Peer) task.ID { return p.Last }), nil
}

func peerResponse(p messages.Peer) api.Peer {
	return api.Peer{Peer: p.Name, LastServerMsgID: p.Last.String(), LastMessageAt: p.LastAt.UTC(), ReadCursor: readCursor(p.Read)}
}

type readRequest api.ReadRequest

func (r *readRequest) Validate() []task.Field {
	var bad decode.BadFields
	pair, ok := membersOf(r.Between)
	bad.When(!ok, "between", pairRule)
	_, isMember := pair.other(r.Reader)
	bad.When(ok && r.Reader != "" && !isMember, "reader", memberRule)
	_, err := task.ParseID(r.UpTo)
	bad.When(err != nil, "up_to", "is required: it must be a server_msg_id")
	return bad
}

// markRead moves the read cursor of a member forward. A repeat or an earlier message changes nothing.
func (h *handlers) markRead(ctx context.Context, c *fn.Call, req readRequest) (any, error) {
	reader, err := c.UserToActFor(req.Reader)
	if err != nil {
		return nil, err
	}
	pair, _ := membersOf(req.Between)
	peer, ok := pair.other(reader)
	switch {
	case !ok && c.May(fn.Admin):
		return nil, task.Invalid([]task.Field{{Name: "reader", Message: "is required of an admin: it " + memberRule}})
	case !ok:
		return nil, errNotMember()
	}
	upTo, _ := task.ParseID(req.UpTo) // valid
	err = h.env.Messages.MarkRead(ctx, reader, peer, upTo)
	if task.CodeOf(err) == task.CodeNotFound {
		err = h.notFoundOrBusy(ctx, upTo, "repeat the same call later", func(m *messages.Submission) bool {
			return m.To.Kind == message.User && (m.From == reader && m.To.Name == peer || m.From == peer && m.To.Name == reader)
		})
	}
	if err != nil {
		return nil, err
	}
	c.Status(http.StatusNoContent)
	return nil, nil
}
