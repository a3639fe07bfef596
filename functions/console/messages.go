package console

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/sendonce/sendonce/shared/api"
)

const (
	messagesPath      = "/api/v1/messages"
	conversationsPage = "/console/messages/conversations"
)

// messageStates are the states of a message.
var messageStates = []string{"accepted", "sending", "sent", "received", "abandoned"}

type messagesPage struct {
	api.Page[api.MessageResponse]
	Kind string // of the stuck messages: sending or sent
}

// messages lists the stuck messages, for visitors who read those of all callers. A submitter finds its messages by their keys.
func (s *site) messages(p *page) error {
	shown := messagesPage{Kind: "sending"}
	if p.Param("kind") == "sent" {
		shown.Kind = "sent"
	}
	if p.ReadsAll() {
		query := p.query("older_than_seconds", "limit", "after")
		query.Set("kind", shown.Kind)
		var err error
		if shown.Page, err = get[api.Page[api.MessageResponse]](p, messagesPath+"/stuck", query); err != nil && !p.storeRefusal(err) {
			return err
		}
	}
	return p.show("messages", p.T("Messages"), shown)
}

// messageByKey redirects to the message with this sender and key.
func (s *site) messageByKey(p *page) error {
	found, err := get[api.MessageResponse](p, messagesPath+"/by-key/"+url.PathEscape(p.Param("client_msg_id")), p.query("from"))
	if refused := p.refusalOf(err); refused != nil && refused.Status == http.StatusNotFound {
		p.Refusal = &api.Error{Status: refused.Status, Message: p.T("Nothing was found."), Fields: []api.Field{{Field: "client_msg_id", Message: p.T("no message of this sender has this key")}}}
		if err := p.setAddress("/console/messages?" + p.query("client_msg_id", "from").Encode()); err != nil {
			return err
		}
		return s.messages(p)
	}
	if err != nil {
		if !p.storeRefusal(err) {
			return err
		}
		return s.messages(p)
	}
	return p.redirect("/console/messages/" + found.ServerMsgID)
}

// changeStuck handles the buttons that change all messages of a list.
func (s *site) changeStuck(p *page) error {
	do, back := p.PathValue("do"), localPath(p.PostFormValue("back"))
	if do != "redrive" && do != "abandon" {
		return s.notFound(p)
	}
	done, err := post[api.MessageBulkResponse](p, messagesPath+"/"+do, api.MessageBulkRequest{IDs: p.PostForm["ids"], Reason: p.PostFormValue("reason")})
	if err != nil {
		return p.showRefused(err, back, s.messages)
	}
	return p.doneMany(back, "messages_"+do, done.Changed)
}

type messagePage struct {
	api.MessageResponse
	Revealed bool
}

// Conversation returns the page of all messages between the sender and the user who receives this one; "" if no other user
// receives it.
func (m messagePage) Conversation() string {
	if name, isUser := strings.CutPrefix(m.To, "user:"); isUser && name != m.From {
		return conversationsPage + "?" + url.Values{"user": {m.From}, "peer": {name}}.Encode()
	}
	return ""
}

// MayRedrive reports whether an operator may send the message again.
func (m messagePage) MayRedrive() bool { return m.Stuck || m.State == "abandoned" }

// MayDecide reports whether an operator may change the message at all.
func (m messagePage) MayDecide() bool {
	return !m.Archived && m.State != "received" && m.State != "accepted"
}

// Redrives is how often an operator has sent the message again.
func (m messagePage) Redrives() int { return m.Epoch - 1 }

func (s *site) message(p *page) error { return p.showMessage(nil) }

// showMessage shows the message of the path. Its data is hidden unless it is revealed.
func (p *page) showMessage(revealed map[string]api.JSON) error {
	found, err := get[api.MessageResponse](p, messagesPath+"/"+p.id(), nil)
	if err != nil {
		return err
	}
	data, isRevealed := revealed[found.ServerMsgID]
	if isRevealed {
		found.Data = data
	} else {
		maskTexts(&found.LastError)
	}
	return p.show("message", p.T("Message"), messagePage{found, isRevealed})
}

// changeMessage handles the buttons of a message's page.
func (s *site) changeMessage(p *page) error {
	id, do := p.PathValue("id"), p.PathValue("do")
	path, back := messagesPath+"/"+url.PathEscape(id)+"/"+do, "/console/messages/"+url.PathEscape(id)
	var err error
	switch do {
	case "redrive":
		err = p.API(http.MethodPost, path, api.RedriveRequest{Reason: p.PostFormValue("reason")}, nil)
	case "abandon":
		err = p.API(http.MethodPost, path, api.AbandonRequest{Reason: p.PostFormValue("reason")}, nil)
	case "reveal":
		revealed, err := p.revealMessages(id)
		if err != nil {
			return err
		}
		if err := p.setAddress(back); err != nil {
			return err
		}
		return p.showMessage(revealed)
	default:
		return s.notFound(p)
	}
	return p.finish(err, back, s.message, "message_"+do)
}

// revealMessages returns the data of messages by their ids. The API writes an audit entry for each.
func (p *page) revealMessages(ids ...string) (map[string]api.JSON, error) {
	found, err := post[api.MessageRevealResponse](p, messagesPath+"/reveal", api.MessageRevealRequest{IDs: ids})
	revealed := map[string]api.JSON{}
	for _, m := range found.Items {
		revealed[m.ServerMsgID] = m.Data
	}
	return revealed, err
}

// conversationPage has the peers of a user, or the messages between the user and one peer.
type conversationPage struct {
	User, Peer   string
	Peers        api.Page[api.Peer]
	Conversation api.ConversationResponse
	Data         map[string]api.JSON // of the revealed messages, by their ids
}

// Shown is the data of a message, nil if it is hidden.
func (c conversationPage) Shown(id string) json.RawMessage { return c.Data[id] }

func (s *site) conversations(p *page) error {
	shown, err := p.readConversation(p.Param)
	if err != nil && !p.storeRefusal(err) {
		return err
	}
	return p.show("conversations", p.T("Conversations"), shown)
}

func (p *page) readConversation(param func(name string) string) (shown conversationPage, err error) {
	shown = conversationPage{User: strings.TrimSpace(param("user")), Peer: strings.TrimSpace(param("peer"))}
	if shown.User == "" && !p.ReadsAll() {
		shown.User = p.Caller.Name
	}
	query := url.Values{"limit": {"50"}} // as many as can be revealed at once
	if after := param("after"); after != "" {
		query.Set("after", after)
	}
	switch {
	case shown.User == "":
	case shown.Peer == "":
		query.Set("user", shown.User)
		shown.Peers, err = get[api.Page[api.Peer]](p, messagesPath+"/peers", query)
	default:
		query.Set("between", shown.User+","+shown.Peer)
		shown.Conversation, err = get[api.ConversationResponse](p, messagesPath, query)
	}
	return shown, err
}

// revealConversation shows the data of the messages that the previous page listed.
func (s *site) revealConversation(p *page) error {
	shown, err := p.readConversation(p.PostFormValue)
	if err != nil {
		return err
	}
	var ids []string
	for _, m := range shown.Conversation.Items {
		ids = append(ids, m.ServerMsgID)
	}
	if len(ids) > 0 {
		if shown.Data, err = p.revealMessages(ids...); err != nil {
			return err
		}
	}
	address := url.Values{"user": {shown.User}, "peer": {shown.Peer}}
	if after := p.PostFormValue("after"); after != "" {
		address.Set("after", after)
	}
	if err := p.setAddress(conversationsPage + "?" + address.Encode()); err != nil {
		return err
	}
	return p.show("conversations", p.T("Conversations"), shown)
}
