package main

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// It may not run beside other tests, as the short run of tasks.
func TestAShortTwoPhaseRunLosesAndReordersNothing(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	var progress bytes.Buffer
	o := options{duration: 200 * time.Millisecond, connections: []int{1, 8}, stall: 500 * time.Millisecond, backlog: 1000, shards: 2, batch: 50}
	s, err := benchTwoPhase(t.Context(), o, &progress)
	require.NoError(t, err, progress.String())
	require.NoError(t, s.wrong())

	names := map[string]int{}
	for _, r := range s.results {
		require.Positive(t, r.rate, r.name)
		names[r.name]++
		require.Contains(t, s.String(), "| "+r.name+" | ")
		require.Contains(t, progress.String(), r.name)
	}
	require.Equal(t, map[string]int{
		"saved": 2, "accepted": 2, "accepted, database stalled": 1, "accepted, nobody saves": 2,
		"save a backlog": 1, "save and relay a backlog": 1,
	}, names)
	require.Greater(t, len(s.letters.ids[acceptedAck]), 2*o.backlog)
	require.Positive(t, s.ratio)
	require.Contains(t, s.String(), "at 8 connections, database stalled to healthy: ")
}

func TestATwoPhaseRunThatLostOrReorderedAMessageIsWrong(t *testing.T) {
	t.Parallel()
	run := func(harm func(*letterSummary)) error {
		s := &letterSummary{
			letters:  letters{ids: map[string][]string{acceptedAck: {"a", "b"}, savedAck: {"c"}}},
			rows:     map[string]int{acceptedAck: 2, savedAck: 1},
			received: received{messages: 3, told: 2, reorders: map[string]int{}},
		}
		harm(s)
		return s.wrong()
	}
	require.NoError(t, run(func(*letterSummary) {}))
	require.NoError(t, run(func(s *letterSummary) { s.received.duplicates = 1 }), "at least once")
	require.EqualError(t, run(func(s *letterSummary) { s.rows[acceptedAck] = 1 }), "of 2 accepted and 1 saved messages, 1 and 1 are rows")
	for _, harm := range []func(*letterSummary){
		func(s *letterSummary) { s.rows[savedAck] = 0 },
		func(s *letterSummary) { s.letters.ids, s.rows = nil, nil },
		func(s *letterSummary) { s.received.messages = 2 },
		func(s *letterSummary) { s.received.told = 1 },
		func(s *letterSummary) { s.received.reorders[acceptedAck] = 1 },
		func(s *letterSummary) { s.results = []result{{failures: map[string]int{"503": 1}}} },
	} {
		require.Error(t, run(harm))
	}
}

func TestDuplicatesAndReordersAreCounted(t *testing.T) {
	t.Parallel()
	l := ledger{received: received{reorders: map[string]int{}}, seen: map[string]bool{}, last: map[string]int{}}
	for _, m := range []struct {
		id, from string
		no       int
	}{{"1", "accepted-1", 1}, {"2", "accepted-2", 1}, {"3", "accepted-1", 3}, {"2", "accepted-2", 1}, {"4", "accepted-1", 2}, {"1", "accepted-1", 1}, {"5", "saved-1", 2}} {
		l.message(m.id, letter{From: m.from, No: m.no})
	}
	require.Equal(t, received{messages: 5, duplicates: 2, reorders: map[string]int{acceptedAck: 1}}, l.received)
}

func TestAShutGateHoldsWhatItIsGiven(t *testing.T) {
	t.Parallel()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer server.Close()
	g, err := openGate("postgres://me:secret@" + server.Addr().String() + "/base")
	require.NoError(t, err)
	u, err := url.Parse(g.url)
	require.NoError(t, err)
	require.Equal(t, "me:secret/base", u.User.String()+u.Path)
	client, err := net.Dial("tcp", u.Host)
	require.NoError(t, err)
	far, err := server.Accept()
	require.NoError(t, err)

	g.shut.Lock()
	_, err = io.Copy(client, strings.NewReader("held"))
	require.NoError(t, err)
	require.NoError(t, far.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err = far.Read(make([]byte, 1))
	require.ErrorContains(t, err, "timeout")
	g.shut.Unlock()
	require.NoError(t, far.SetReadDeadline(time.Now().Add(callTimeout)))
	got := make([]byte, len("held"))
	_, err = io.ReadFull(far, got)
	require.NoError(t, err)
	require.Equal(t, "held", string(got))
	require.NoError(t, g.close())
	_, err = far.Read(got)
	require.Error(t, err, "its connections end with the gate")
}
