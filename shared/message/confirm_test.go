package message

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each caller confirms a message to each address. The table lists all that may.
func TestConfirmPermissions(t *testing.T) {
	t.Parallel()
	const token = "the token of this message"
	callers := map[string]Confirmer{
		"nobody":           {User: "eve"},
		"the user":         {User: "bob"},
		"a granted caller": {User: "points", Receives: []string{"bills.>", "msg.orders.*"}},
		"granted all":      {User: "mirror", Receives: []string{">"}},
		"the token":        {User: "shop", Token: token},
		"another token":    {User: "shop", Token: token + "x"},
		"an admin":         {User: "ops", Admin: true},
		"a granted admin":  {User: "ops", Admin: true, Receives: []string{"msg.orders.paid"}},
		"a user and admin": {User: "bob", Admin: true},
	}
	for name, c := range map[string]struct {
		to    Address
		token string
		may   map[string]Permission
	}{
		"a subject": {Address{Subject, "msg.orders.paid"}, "", map[string]Permission{
			"a granted caller": IsRecipient, "granted all": IsRecipient, "a granted admin": IsRecipient, "an admin": ByOperator, "a user and admin": ByOperator,
		}},
		"a subject below": {Address{Subject, "msg.orders.paid.eu"}, "", map[string]Permission{
			"granted all": IsRecipient, "an admin": ByOperator, "a granted admin": ByOperator, "a user and admin": ByOperator,
		}},
		"a subject like the user's name": {Address{Subject, "bob"}, "", map[string]Permission{
			"granted all": IsRecipient, "an admin": ByOperator, "a granted admin": ByOperator, "a user and admin": ByOperator,
		}},
		"a user": {Address{User, "bob"}, "", map[string]Permission{
			"the user": IsRecipient, "a user and admin": IsRecipient, "an admin": ByOperator, "a granted admin": ByOperator,
		}},
		"a URL": {Address{URL, "https://example.com/bob"}, "", map[string]Permission{
			"an admin": ByOperator, "a granted admin": ByOperator, "a user and admin": ByOperator,
		}},
		"a URL that wants the explicit call": {Address{URL, "https://example.com/bob"}, token, map[string]Permission{
			"the token": HasToken, "an admin": ByOperator, "a granted admin": ByOperator, "a user and admin": ByOperator,
		}},
	} {
		for caller, who := range callers {
			who.Consumer = who.User
			require.Equal(t, c.may[caller], who.PermissionFor(c.to, c.token), "%s by %s", name, caller)

			who.Consumer = "somebody else"
			want := NoPermission
			if who.Admin {
				want = ByOperator
			}
			require.Equal(t, want, who.PermissionFor(c.to, c.token), "%s by %s for somebody else", name, caller)
		}
	}
}

// FirstSend for each kind of message, send history and permission.
func TestConfirmBeforeSendIsRejected(t *testing.T) {
	t.Parallel()
	last := func(m *Message) { m.MaxSends, m.Remaining = 1, 1 }
	abandon := func(m Message) Message {
		m, err := m.Abandon("ops")
		require.NoError(t, err)
		return m
	}
	redrive := func(m Message) Message {
		m, err := m.Redrive(now)
		require.NoError(t, err)
		return m
	}
	for _, kind := range []Kind{Subject, URL, User} {
		of := func(m *Message) { m.Kind = kind }
		histories := map[string]struct {
			m    Message
			want FirstSend // with IsRecipient and ByOperator
			url  FirstSend // with ByOperator to a URL
		}{
			"just saved":             {fresh(of), MaybeSent, MaybeSent},
			"unavailable":            {fresh(of).Settle(unavailable, now, 0.5), MaybeSent, MaybeSent},
			"delivered before saved": {fresh(of).delivered(now), WasSent, WasSent},
			"accepted":               {fresh(of).Settle(wasAccepted, now, 0.5), WasSent, WasSent},
			"accepted, abandoned":    {abandon(fresh(of).Settle(wasAccepted, now, 0.5)), WasSent, WasSent},
			"refused, tried again":   {fresh(of).Settle(refused, now, 0.5), MaybeSent, WasSent},
			"refused to the end":     {fresh(of, last).Settle(refused, now, 0.5), NotSent, WasSent},
			"refused, redriven":      {redrive(fresh(of, last).Settle(refused, now, 0.5)), MaybeSent, WasSent},
			"abandoned unsent":       {abandon(fresh(of)), NotSent, NotSent},
			"accepted, redriven":     {redrive(fresh(of, last).Settle(wasAccepted, now, 0.5)), WasSent, WasSent},
			"received":               {fresh(of).Settle(wasAccepted, now, 0.5).Receive("points", 1), WasSent, WasSent},
		}
		for name, c := range histories {
			at := fmt.Sprintf("%v: %s", kind, name)
			byOperator := c.want
			if kind == URL {
				byOperator = c.url
			}
			require.Equal(t, c.want, c.m.FirstSend(IsRecipient), at)
			require.Equal(t, byOperator, c.m.FirstSend(ByOperator), at)
			require.Equal(t, WasSent, c.m.FirstSend(HasToken), "%s: only a send carries the token", at)
			require.Equal(t, NotSent, c.m.FirstSend(NoPermission), at)
		}
	}
}
