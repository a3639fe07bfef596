package store

import (
	"context"

	"testing"

	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/task"
)

func (db *DB) mustAddEndpoint(t *testing.T, caller int64, url string, events ...string) Endpoint {
	t.Helper()
	db.mustHaveCaller(t, caller)
	e, err := db.AddEndpoint(t.Context(), NewEndpoint{CallerID: caller, URL: url, Events: events, Secret: "whsec_" + url}, Operator{CallerID: caller, Name: "shop"})
	require.NoError(t, err)
	return e
}

// outbox gives the kinds of its rows with what each tells of, in order.
func (db *DB) outbox(t *testing.T) (rows []string, ids [][]task.ID) {
	t.Helper()
	found, err := db.owner(t).Query(t.Context(), `select kind, ids from event_outbox order by id`)
	require.NoError(t, err)
	for found.Next() {
		var kind string
		var of []task.ID
		require.NoError(t, found.Scan(&kind, &of))
		rows, ids = append(rows, kind), append(ids, of)
	}
	require.NoError(t, found.Err())
	return rows, ids
}

// mustHaveCaller registers the caller of an id, unless it is that of the environment.
func (db *DB) mustHaveCaller(t *testing.T, id int64) {
	t.Helper()
	db.exec(t, `insert into callers (id, name, token_hash, roles, queues) overriding system value
		select $1::bigint, 'caller ' || $1::bigint, sha256(''), '{submitter}', '{}' where $1::bigint <> 0 on conflict do nothing`, id)
}

func fromCaller(id int64) func(*Submission) { return func(s *Submission) { s.CallerID = id } }

func withCallback(s *Submission) { s.CallbackURL = "https://shop.example/told" }

// relayEvents publishes with one outcome for each, and gives what was published.
func (db *DB) relayEvents(t *testing.T, outcome func(i int) msg.Outcome) (seen []DueEvent) {
	t.Helper()
	_, err := db.RelayEvents(t.Context(), 10, func(_ context.Context, due []DueEvent) ([]msg.Result, error) {
		seen = due
		results := make([]msg.Result, len(due))
		for i := range results {
			results[i] = msg.Result{Outcome: outcome(i), Reason: "because", Scope: msg.AllStreams}
		}
		return results, nil
	})
	require.NoError(t, err)
	return seen
}

func telling(mode EventMode) func(*Config) { return func(c *Config) { c.Events = mode } }
