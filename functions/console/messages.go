package console

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/sendonce/sendonce/shared/api"
)

const (
	messagesPath         = "/api/v1/messages"
	conversationsAddress = "/console/messages/conversations"
)

type messagesPage struct {
	api.Page[api.MessageResponse]
	Kind string // state of the stuck messages: sending or sent
}

// messages lists the stuck messages of all callers if the visitor may read them. Submitters can find their own messages by key.
func (p *page) messages() error {
	shown := messagesPage{Kind: "sending"}
	if p.Param("kind") == "sent" {
		shown.Kind = "sent"
	}
	if p.ReadsAll() {
		query := p.query("older_than_seconds", "limit", "after")
		query.Set("kind", shown.Kind)
		var err error
		if shown.Page, err = get[api.Page[api.MessageResponse]](p, messagesPath+"/stuck", query); err != nil && !p.keepRefusal(err) {
			return err
		}
	}
	return p.show("messages", p.T("Messages"), shown)
}

// messageByKey redirects to the message with the sender and the key in the address.
func (p *page) messageByKey() error {
	response, err := get[api.MessageResponse](p, messagesPath+"/by-key/"+url.PathEscape(p.Param("client_msg_id")), p.query("from"))
	switch refused := p.refusalOf(err); {
	case err == nil:
		return p.redirect("/console/messages/" + response.ServerMsgID)
	case refused != nil && refused.Status == http.StatusNotFound:
		p.Refusal = &api.Error{Status: refused.Status, Message: p.T("Nothing was found."), Fields: []api.Field{{Field: "client_msg_id", Message: p.T("no message of this sender has this key")}}}
		p.setAddress("/console/messages?" + p.query("client_msg_id", "from").Encode())
	case !p.keepRefusal(err):
		return err
	}
	return p.messages()
}

// changeStuck handles the buttons that change all messages on a page of the list.
func (p *page) changeStuck() error {
	do, back := p.PathValue("do"), localPath(p.PostFormValue("back"))
	if do != "redrive" && do != "abandon" {
		return p.notFound()
	}
	done, err := post[api.MessageBulkResponse](p, messagesPath+"/"+do, api.MessageBulkRequest{IDs: p.PostForm["ids"], Reason: p.PostFormValue("reason")})
	if err != nil {
		return p.showRefused(err, back, (*page).messages)
	}
	return p.doneMany(back, "messages_"+do, done.Changed)
}

type messagePage struct {
	api.MessageResponse
	Revealed bool
}

// Conversation returns the page of all messages between the sender and the receiver, or "" if the receiver is not another user.
func (m messagePage) Conversation() string {
	if receiver, isUser := strings.CutPrefix(m.To, "user:"); isUser && receiver != m.From {
		return conversationsAddress + "?" + url.Values{"user": {m.From}, "peer": {receiver}}.Encode()
	}
	return ""
}

// MayRedrive reports whether the page has a button that redrives the message. The API also redrives a message that is not stuck yet.
func (m messagePage) MayRedrive() bool { return m.Stuck || m.State == "abandoned" }

// MayBeChanged reports whether operators can change the message: it is not archived, and its state allows a change.
func (m messagePage) MayBeChanged() bool {
	return !m.Archived && m.State != "received" && m.State != "accepted"
}

// Redrives returns how often operators have redriven the message.
func (m messagePage) Redrives() int { return m.Epoch - 1 }

func (p *page) message() error { return p.showMessage(nil) }

// showMessage shows the message of the path. revealed has the data of messages by their ids; without it, the data is hidden.
func (p *page) showMessage(revealed map[string]api.JSON) error {
	response, err := get[api.MessageResponse](p, messagesPath+"/"+p.id(), nil)
	if err != nil {
		return err
	}
	data, isRevealed := revealed[response.ServerMsgID]
	if isRevealed {
		response.Data = data
	} else {
		maskTexts(&response.LastError)
	}
	return p.show("message", p.T("Message"), messagePage{response, isRevealed})
}

// changeMessage handles the buttons of a message's page: redrive, abandon or reveal.
func (p *page) changeMessage() error {
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
		p.setAddress(back)
		return p.showMessage(revealed)
	default:
		return p.notFound()
	}
	return p.finish(err, back, (*page).message, "message_"+do)
}

// revealMessages returns the data of messages by their ids. The API writes an audit entry for each message: for the same message and
// visitor at most one an hour.
func (p *page) revealMessages(ids ...string) (map[string]api.JSON, error) {
	response, err := post[api.MessageRevealResponse](p, messagesPath+"/reveal", api.MessageRevealRequest{IDs: ids})
	revealed := map[string]api.JSON{}
	for _, m := range response.Items {
		revealed[m.ServerMsgID] = m.Data
	}
	return revealed, err
}

// conversationPage has the peers of a user or, if a peer is chosen, the messages between both.
type conversationPage struct {
	User, Peer   string
	Peers        api.Page[api.Peer]
	Conversation api.ConversationResponse
	Data         map[string]api.JSON // of the messages, by their ids; nil = hidden
}

func (p *page) conversations() error {
	shown, err := p.readConversation(p.Param)
	if err != nil && !p.keepRefusal(err) {
		return err
	}
	return p.show("conversations", p.T("Conversations"), shown)
}

func (p *page) readConversation(param func(name string) string) (shown conversationPage, err error) {
	shown = conversationPage{User: strings.TrimSpace(param("user")), Peer: strings.TrimSpace(param("peer"))}
	if shown.User == "" && !p.ReadsAll() {
		shown.User = p.Caller.Name
	}
	query := url.Values{"limit": {"50"}} // the API reveals at most 50 messages in one call
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

// revealConversation shows the page of the conversation again, now with the data of its messages.
func (p *page) revealConversation() error {
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
	p.setAddress(conversationsAddress + "?" + address.Encode())
	return p.show("conversations", p.T("Conversations"), shown)
}
