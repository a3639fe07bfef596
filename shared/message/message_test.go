package message

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// fresh returns a message that was just saved, with the changes applied.
func fresh(change ...func(*Message)) Message {
	m := Message{Kind: Subject, Confirm: true, MaxSends: 5, ExpectedReceipts: 1, Remaining: 5, Epoch: 1, NextAt: now}
	for _, c := range change {
		c(&m)
	}
	return m
}

var (
	wasAccepted = Result{Outcome: Accepted}
	refused     = Result{Outcome: Refused, Reason: "no stream"}
	unavailable = Result{Outcome: Unavailable, Reason: "the subject is full"}
	streamFull  = Result{Outcome: Unavailable, Reason: "the stream is full", Scope: OneStream}
	noBroker    = Result{Outcome: Unavailable, Reason: "no connection", Scope: AllStreams}
)

var fingerprint = [16]byte{10, 11, 12, 13, 14}

func TestFinalStatePerAddress(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind    Kind
		confirm bool
		state   string
		final   bool
	}{
		"to a subject, confirmation required": {Subject, true, "sent", false},
		"to a subject":                        {Subject, false, "sent", true},
		"to a URL":                            {URL, false, "received", true},
		"to a URL, confirmation required":     {URL, true, "sent", false},
		"to a user":                           {User, false, "sent", true},
	} {
		m := fresh(func(m *Message) { m.Kind, m.Confirm = c.kind, c.confirm }).Settle(wasAccepted, now, 0.5)
		require.Equal(t, c.state, m.State(), name)
		require.Equal(t, c.final, m.Final(), name)
		require.Equal(t, c.final, m.NextAt.IsZero(), name)
		require.False(t, m.Stuck(), name)
	}
}

func TestMessageFollowsSchedule(t *testing.T) {
	t.Parallel()
	for _, result := range []Result{wasAccepted, refused} {
		m := fresh(func(m *Message) { m.MaxSends, m.Remaining = 6, 6 })
		for i, pause := range []time.Duration{10 * time.Second, time.Minute, 10 * time.Minute, time.Hour, time.Hour} {
			require.Equal(t, fmt.Sprintf("x.0a0b0c0d.1.%d", i+1), m.MsgID("x", fingerprint))
			require.Equal(t, now.Add(pause*8/10), m.Settle(result, now, 0).NextAt)
			require.Less(t, m.Settle(result, now, 0.999).NextAt, now.Add(pause*12/10))
			m = m.Settle(result, now, 0.5)
			require.Equal(t, now.Add(pause), m.NextAt)
			require.False(t, m.Stuck())
		}
		m = m.Settle(result, now, 0.5)
		require.True(t, m.Stuck())
		require.True(t, m.NextAt.IsZero())
		require.Equal(t, result.Reason, m.LastError)
		require.Equal(t, map[Outcome]string{Accepted: "sent", Refused: "sending"}[result.Outcome], m.State(), "a stuck message is in state sent if a send was accepted, otherwise in state sending")
	}
}

func TestUnavailableSendIsNotCounted(t *testing.T) {
	t.Parallel()
	m := fresh(func(m *Message) { m.MaxSends, m.Remaining = 1, 1 })
	for i := range 100 {
		before := m
		m = m.Settle(unavailable, now, float64(i)/100)
		require.Equal(t, before.MsgID("x", fingerprint), m.MsgID("x", fingerprint))
		require.Equal(t, now.Add(2*time.Second), m.NextAt)
		require.Equal(t, "the subject is full", m.LastError)
		m.LastError, m.NextAt = before.LastError, before.NextAt
		require.Equal(t, before, m)
		for _, r := range []Result{streamFull, noBroker} {
			require.Equal(t, before, m.Settle(r, now.Add(time.Hour), 0.5), "the message does not change")
		}
	}
	m = m.Settle(wasAccepted, now, 0.5)
	require.Equal(t, "", m.LastError)
	require.EqualValues(t, 1, m.SendNo)
}

func TestUnavailablePausesGrowToAMinute(t *testing.T) {
	t.Parallel()
	for failures, want := range []time.Duration{2, 2, 4, 8, 16, 32, 60, 60} {
		require.Equal(t, want*time.Second, StreamPause(failures))
	}
	require.Equal(t, time.Minute, StreamPause(1<<30))
	for age, want := range map[time.Duration]time.Duration{0: 2 * time.Second, 9 * time.Second: 9 * time.Second, time.Hour: time.Minute} {
		require.Equal(t, want, UnavailablePause(age))
		m := fresh().Settle(Result{Outcome: Unavailable, RetryAfter: want}, now, 0.5)
		require.Equal(t, now.Add(want), m.NextAt)
	}
	require.Equal(t, now.Add(time.Minute), fresh().Settle(Result{Outcome: Unavailable, RetryAfter: time.Hour}, now, 0.5).NextAt)
}

func TestConfirmationFinishesMessageInAnyState(t *testing.T) {
	t.Parallel()
	abandoned, err := fresh().Abandon("ops")
	require.NoError(t, err)
	for name, m := range map[string]Message{
		"before the result of a send": fresh(),
		"after a successful send":     fresh().Settle(wasAccepted, now, 0.5),
		"abandoned":                   abandoned,
		"stuck":                       fresh(func(m *Message) { m.MaxSends, m.Remaining = 1, 1 }).Settle(refused, now, 0.5),
		"confirmation not required":   fresh(func(m *Message) { m.Confirm = false }).Settle(wasAccepted, now, 0.5),
	} {
		got := m.Receive("points", 1)
		require.Equal(t, "received", got.State(), name)
		require.Equal(t, "points", got.FinishedBy, name)
		require.True(t, got.NextAt.IsZero(), name)
		require.Equal(t, got, got.Receive("other", 2), "%s: a later confirmation changes nothing", name)
	}
}

func TestAllExpectedConsumersMustConfirm(t *testing.T) {
	t.Parallel()
	m := fresh(func(m *Message) { m.ExpectedReceipts = 3 }).Receive("a", 1)
	require.Equal(t, Sent, m.Status, "a consumer that confirms has the message, whatever the broker returned")
	require.False(t, m.NextAt.IsZero(), "the message is sent again for the other consumers")
	m = m.Receive("b", 2)
	require.False(t, m.Final())
	require.Equal(t, "received", m.Receive("c", 3).State())
}

func TestRedriveRestartsSchedule(t *testing.T) {
	t.Parallel()
	stuck := fresh(func(m *Message) { m.MaxSends, m.Remaining = 1, 1 }).Settle(wasAccepted, now, 0.5)
	abandoned, err := stuck.Abandon("ops")
	require.NoError(t, err)
	for name, m := range map[string]Message{"stuck": stuck, "abandoned": abandoned} {
		got, err := m.Redrive(now)
		require.NoError(t, err, name)
		require.Equal(t, "x.0a0b0c0d.2.1", got.MsgID("x", fingerprint), name)
		require.EqualValues(t, 1, got.Remaining, name)
		require.Equal(t, now, got.NextAt, name)
		require.Equal(t, "sent", got.State(), "%s: the status does not go back", name)
	}
}

func TestFinishedMessageIsNeitherRedrivenNorAbandoned(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]Message{
		"received":                  fresh().Receive("a", 1),
		"sent without confirmation": fresh(func(m *Message) { m.Confirm = false }).Settle(wasAccepted, now, 0.5),
	} {
		got, err := m.Redrive(now)
		require.Error(t, err, name)
		require.Equal(t, m, got, name)
		got, err = m.Abandon("ops")
		require.Error(t, err, name)
		require.Equal(t, m, got, name)
	}
	once, err := fresh().Abandon("ops")
	require.NoError(t, err)
	twice, err := once.Abandon("other")
	require.NoError(t, err)
	require.Equal(t, once, twice)
}

// Most invariants of the package comment hold after any sequence of steps.
func TestInvariants(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		m := fresh(func(m *Message) {
			m.Kind, m.Confirm = Kind(random.IntN(3)), random.IntN(2) == 0
			m.MaxSends = int16(1 + random.IntN(4))
			m.Remaining = m.MaxSends
			if m.Confirm {
				m.ExpectedReceipts = int16(1 + random.IntN(3))
			}
		})
		counted, receipts := map[string]bool{}, 0
		for range 30 {
			before := m
			switch step := random.IntN(10); {
			case step < 6 && !m.NextAt.IsZero():
				r := []Result{wasAccepted, refused, unavailable, streamFull, noBroker}[random.IntN(5)]
				if r.Outcome != Unavailable {
					require.False(t, counted[m.MsgID("x", fingerprint)], "a MsgID is used for at most one send that counts")
					counted[m.MsgID("x", fingerprint)] = true
				}
				m = m.Settle(r, now, random.Float64())
			case step == 6:
				receipts++
				m = m.Receive("c", receipts)
			case step == 7:
				m, _ = m.Redrive(now)
			case step == 8:
				m, _ = m.Abandon("ops")
			}
			require.GreaterOrEqual(t, m.Status, before.Status)
			require.Equal(t, m.MaxSends, m.Remaining+m.SendNo)
			require.GreaterOrEqual(t, m.Remaining, int16(0))
			require.Equal(t, m.Final() || m.Remaining == 0, m.NextAt.IsZero())
			require.False(t, m.Stuck() && m.Final())
			require.False(t, before.Status == Received && m != before, "a received message never changes")
		}
	}
}
