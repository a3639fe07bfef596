package message

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each caller tries to confirm a message to each address. A caller that is not in permissions may not.
func TestConfirmPermissions(t *testing.T) {
	t.Parallel()
	const token = "the token of this message"
	callers := map[string]Confirmer{
		"no permission":    {User: "eve"},
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
		to          Address
		token       string
		permissions map[string]Permission
	}{
		"a subject": {Address{Subject, "msg.orders.paid"}, "", map[string]Permission{
			"a granted caller": IsRecipient, "granted all": IsRecipient, "a granted admin": IsRecipient, "an admin": ByOperator, "a user and admin": ByOperator,
		}},
		"a longer subject": {Address{Subject, "msg.orders.paid.eu"}, "", map[string]Permission{
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
		"a URL with a token": {Address{URL, "https://example.com/bob"}, token, map[string]Permission{
			"the token": HasToken, "an admin": ByOperator, "a granted admin": ByOperator, "a user and admin": ByOperator,
		}},
	} {
		for caller, confirmer := range callers {
			confirmer.Consumer = confirmer.User
			require.Equal(t, c.permissions[caller], confirmer.PermissionFor(c.to, c.token), "%s by %s", name, caller)

			confirmer.Consumer = "another consumer"
			want := NoPermission
			if confirmer.Admin {
				want = ByOperator
			}
			require.Equal(t, want, confirmer.PermissionFor(c.to, c.token), "%s by %s for another consumer", name, caller)
		}
	}
}

func TestFirstSend(t *testing.T) {
	t.Parallel()
	lastSend := func(m *Message) { m.MaxSends, m.Remaining = 1, 1 }
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
		ofKind := func(m *Message) { m.Kind = kind }
		histories := map[string]struct {
			m    Message
			want FirstSend // for IsRecipient, and for ByOperator except to a URL
			url  FirstSend // for ByOperator to a URL
		}{
			"just saved":             {fresh(ofKind), MaybeSent, MaybeSent},
			"unavailable":            {fresh(ofKind).Settle(unavailable, now, 0.5), MaybeSent, MaybeSent},
			"delivered before saved": {fresh(ofKind).delivered(now), WasSent, WasSent},
			"accepted":               {fresh(ofKind).Settle(wasAccepted, now, 0.5), WasSent, WasSent},
			"accepted, abandoned":    {abandon(fresh(ofKind).Settle(wasAccepted, now, 0.5)), WasSent, WasSent},
			"refused, tried again":   {fresh(ofKind).Settle(refused, now, 0.5), MaybeSent, WasSent},
			"last send refused":      {fresh(ofKind, lastSend).Settle(refused, now, 0.5), NotSent, WasSent},
			"refused, redriven":      {redrive(fresh(ofKind, lastSend).Settle(refused, now, 0.5)), MaybeSent, WasSent},
			"abandoned unsent":       {abandon(fresh(ofKind)), NotSent, NotSent},
			"accepted, redriven":     {redrive(fresh(ofKind, lastSend).Settle(wasAccepted, now, 0.5)), WasSent, WasSent},
			"received":               {fresh(ofKind).Settle(wasAccepted, now, 0.5).Receive("points", 1), WasSent, WasSent},
		}
		for name, c := range histories {
			at := fmt.Sprintf("%v: %s", kind, name)
			byOperator := c.want
			if kind == URL {
				byOperator = c.url
			}
			require.Equal(t, c.want, c.m.FirstSend(IsRecipient), at)
			require.Equal(t, byOperator, c.m.FirstSend(ByOperator), at)
			require.Equal(t, WasSent, c.m.FirstSend(HasToken), "%s: only a send contains the token", at)
			require.Equal(t, NotSent, c.m.FirstSend(NoPermission), at)
		}
	}
}
