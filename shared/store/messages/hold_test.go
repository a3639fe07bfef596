package messages_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/store/storetest"
)

func TestCallersThatFilledAStreamWaitAndOthersDoNot(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `insert into callers (id, name, token_hash, roles, queues, account_id) overriding system value
		values (1, 'op', sha256('1'), '{admin}', '{}', null), (2, 'op.a', sha256('2'), '{submitter}', '{}', 1), (3, 'op.b', sha256('3'), '{submitter}', '{}', 1), (4, 'shop', sha256('4'), '{submitter}', '{}', null)`)
	db.Exec(t, `insert into stream_usage (since, stream, caller_id, bytes) values (now(), 'USERS', 2, 600), (now(), 'USERS', 3, 401), (now(), 'USERS', 4, 1000),
		(now() - interval '91 seconds', 'USERS', 4, 1000), (now(), 'MESSAGES', 4, 5000)`)
	held, _, err := db.Messages.Hold(t.Context(), map[string]int64{msg.StreamUsers: 1000, msg.StreamMessages: 5000})
	require.NoError(t, err)
	require.Equal(t, []string{"USERS", "USERS", "USERS"}, held.Streams)
	require.ElementsMatch(t, []int64{1, 2, 3}, held.Callers, "the account of these has used more than is free; caller 4 has not used more within 90 seconds")

	ids := map[string]*messages.Submission{}
	for caller, to := range map[int64]msg.Address{2: {Kind: msg.User, Name: "bob"}, 3: {Kind: msg.Subject, Name: "msg.a"}, 4: {Kind: msg.User, Name: "bob"}} {
		m := storetest.Message(fmt.Sprint(caller), ofCaller(caller), storetest.SendTo(to.Kind, to.Name), withoutConfirm)
		db.MustSave(t, m)
		ids[fmt.Sprint(caller, " ", to.Stream())] = m
	}
	relay := func(held messages.Held) {
		relayed, err := db.Messages.Relay(t.Context(), 100, held, storetest.Always(storetest.Accepted).Publish)
		require.NoError(t, err)
		require.False(t, relayed.More)
	}
	states := func() map[string]string {
		states := map[string]string{}
		for name, m := range ids {
			states[name] = db.MustMessage(t, m.ID).State()
		}
		return states
	}
	relay(held)
	require.Equal(t, map[string]string{"2 USERS": "sending", "3 MESSAGES": "sent", "4 USERS": "sent"}, states())
	relay(messages.Held{})
	require.Equal(t, "sent", states()["2 USERS"])
}

func TestHeldMessagesMakeATrimDue(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	isDue := func() bool {
		_, due, err := db.Messages.BeginTrim(t.Context())
		require.NoError(t, err)
		return due
	}
	hold := func(free int64, want bool) {
		_, trimDue, err := db.Messages.Hold(t.Context(), map[string]int64{msg.StreamUsers: free})
		require.NoError(t, err)
		require.Equal(t, want, trimDue)
	}
	db.Exec(t, `insert into stream_usage (since, stream, caller_id, bytes) values (now(), 'USERS', 7, 1000)`)
	isDue()
	require.False(t, isDue())
	hold(10, false)
	require.False(t, isDue(), "the last trim began a moment ago")
	db.Exec(t, `update upkeep set begun_at = now() - interval '16 seconds'`)
	hold(1000, false)
	require.False(t, isDue(), "nobody is held")
	hold(999, true)
	require.True(t, isDue())
}
