package messages_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/store/storetest"
)

func TestStreamsAreTrimmedByOneInstanceAtATime(t *testing.T) {
	t.Parallel()
	one, other := storetest.OpenTwo(t)
	due := func(db *storetest.DB) bool {
		_, due, err := db.Messages.BeginTrim(t.Context())
		require.NoError(t, err)
		return due
	}
	require.True(t, due(one))
	require.False(t, due(one))
	require.False(t, due(other))
	one.Exec(t, `update upkeep set begun_at = begun_at - interval '5 minutes'`)
	require.True(t, due(other))
	require.False(t, due(one))

	one.Exec(t, `insert into stream_pauses (stream, until, failures, reason) values ('USERS', now(), 1, 'full'), ('EVENTS', now(), 0, 'away')`)
	one.Exec(t, `update upkeep set begun_at = begun_at - interval '15 seconds'`)
	trim, isDue, err := other.Messages.BeginTrim(t.Context())
	require.NoError(t, err)
	require.True(t, isDue, "a stream that accepts nothing is trimmed soon")
	require.Equal(t, messages.Trim{Refused: []string{"USERS"}}, trim)
	require.NoError(t, other.Messages.EndTrim(t.Context(), 7, []string{"USERS"}))
	one.Exec(t, `update upkeep set begun_at = begun_at - interval '15 seconds'`)
	trim, _, err = one.Messages.BeginTrim(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 7, trim.From)
}

func TestInboxTrimmedIsRecordedByUser(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	record := func(last uint64, upTo map[string]uint64) {
		t.Helper()
		require.NoError(t, db.Messages.SetInboxesTrimmed(t.Context(), upTo, last))
		require.NoError(t, db.Messages.ForgetInboxTrims(t.Context(), last, 720*time.Hour))
	}
	trimmed := func(user string, want uint64) {
		t.Helper()
		upTo, err := db.Messages.InboxTrimmed(t.Context(), user)
		require.NoError(t, err)
		require.Equal(t, want, upTo, user)
	}
	record(100, map[string]uint64{"ann": 50, "bob": 60})
	record(100, map[string]uint64{"ann": 40, "cid": 100})
	trimmed("ann", 50)
	trimmed("bob", 60)
	trimmed("cid", 100)
	trimmed("dan", 0)
	db.Exec(t, `update inbox_trims set trimmed_at = now() - interval '31 days' where user_name = 'bob'`)
	record(70, map[string]uint64{"dan": 7})
	trimmed("bob", 0) // older than every message in the stream
	trimmed("cid", 0) // above the last sequence number, so of an earlier stream
	trimmed("ann", 50)
	record(30, map[string]uint64{"ann": 20})
	trimmed("ann", 20)
}

func TestTrimForgetsOldCountsOfMessages(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `insert into inbox_unsaved select 'vic', 'sender', now() + make_interval(mins => m), 1 from unnest('{-70,-50,0,70}'::int[]) m`)
	db.Exec(t, `insert into stream_usage select now() + make_interval(mins => m), 'USERS', 1, 1 from unnest('{-70,-50,0,70}'::int[]) m`)
	require.NoError(t, db.Messages.EndTrim(t.Context(), 0, nil))
	require.Equal(t, 2, db.Count(t, `select count(*) from inbox_unsaved`))
	require.Equal(t, 2, db.Count(t, `select count(*) from stream_usage`))
}
