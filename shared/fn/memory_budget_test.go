package fn

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/task"
)

func (b *memoryBudget) mustEnter(t *testing.T, caller string) *callMemory {
	t.Helper()
	m, err := b.enter(caller, false, false)
	require.NoError(t, err)
	return m
}

// requireWaiting waits until n calls wait for memory.
func (b *memoryBudget) requireWaiting(t *testing.T, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.waiting) == n
	}, time.Minute, time.Millisecond)
}

func TestCallerMemoryIsLimitedToItsShare(t *testing.T) {
	t.Parallel()
	b := newMemoryBudget(80, 0.25)
	b.largeAtOnce = 10
	greedy := b.mustEnter(t, "mallory")
	require.NoError(t, greedy.reserve(t.Context(), 15*mebibyte, true))
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.Error(t, b.mustEnter(t, "mallory").reserve(soon, 10*mebibyte, true), "a call above the share waits")
	require.NoError(t, b.mustEnter(t, "mallory").reserve(t.Context(), 1000, false), "small calls go on")
	require.NoError(t, b.mustEnter(t, "ann").reserve(t.Context(), 15*mebibyte, true), "others do not wait")
	require.Equal(t, task.CodeServerBusy, task.CodeOf(b.mustEnter(t, "mallory").tryReserve(10*mebibyte)))
}

// With SENDONCE_CALLER_SHARE=1 a thousand sender apps of one caller may claim at once.
func TestShareOfOneAllowsAllMemory(t *testing.T) {
	t.Parallel()
	const claims, tasksOfAClaim = 1000, 40 << 10
	b := newMemoryBudget(80, 1)
	for range claims {
		require.NoError(t, b.mustEnter(t, "apps").tryReserve(tasksOfAClaim))
	}
}

func TestLargeCallsTakeTurns(t *testing.T) {
	t.Parallel()
	b := newMemoryBudget(80, 0.25)
	b.largeAtOnce = 1
	first, second := b.mustEnter(t, "ann"), b.mustEnter(t, "ann")
	require.NoError(t, first.reserve(t.Context(), mebibyte, true))
	granted := make(chan error, 1)
	go func() { granted <- second.reserve(t.Context(), mebibyte, true) }()
	b.requireWaiting(t, 1)
	first.release()
	require.NoError(t, <-granted)
	second.release()
	require.Zero(t, b.inUse())
	require.Empty(t, b.callers, "nothing is kept of callers without calls")
}

func TestCallThatFitsGoesOnWhenEarlierOneStopsWaiting(t *testing.T) {
	t.Parallel()
	b := newMemoryBudget(80, 0.25)
	b.largeAtOnce = 3
	require.NoError(t, b.mustEnter(t, "ann").reserve(t.Context(), 15*mebibyte, true))
	earlier, later := b.mustEnter(t, "ann"), b.mustEnter(t, "ann")
	ctx, stop := context.WithCancel(t.Context())
	stopped, granted := make(chan error, 1), make(chan error, 1)
	go func() { stopped <- earlier.reserve(ctx, 10*mebibyte, true) }()
	b.requireWaiting(t, 1)
	go func() { granted <- later.reserve(t.Context(), mebibyte, true) }()
	b.requireWaiting(t, 2)
	stop()
	require.ErrorIs(t, <-stopped, context.Canceled)
	require.NoError(t, <-granted)
}

// The processor is idle while a batch waits for its commit.
func TestLargeCallsWorkWhileAnotherWaitsForItsCommit(t *testing.T) {
	t.Parallel()
	b := newMemoryBudget(80, 0.25)
	b.largeAtOnce = 1
	first, second := b.mustEnter(t, "ann"), b.mustEnter(t, "ann")
	require.NoError(t, first.reserve(t.Context(), mebibyte, true))
	first.pause()
	require.NoError(t, second.reserve(t.Context(), mebibyte, true))
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.Error(t, first.resume(soon), "another large call runs")
	second.pause()
	require.NoError(t, first.resume(t.Context()))
	require.EqualValues(t, 2*(mebibyte+callCharge), b.inUse(), "both keep their memory")
	first.release()
	second.release()
	require.Empty(t, b.callers)
	small := b.mustEnter(t, "ann")
	small.pause()
	require.NoError(t, small.resume(t.Context()), "the call was never a large one")
}

func TestPausedCallsResumeWhileAnotherWaitsForTheirMemory(t *testing.T) {
	t.Parallel()
	b := newMemoryBudget(80, 0.25)
	b.largeAtOnce = 1
	first, second, third := b.mustEnter(t, "ann"), b.mustEnter(t, "ann"), b.mustEnter(t, "ann")
	for _, call := range []*callMemory{first, second} {
		require.NoError(t, call.reserve(t.Context(), 9*mebibyte, true))
		call.pause()
	}
	granted := make(chan error, 1)
	go func() { granted <- third.reserve(t.Context(), 9*mebibyte, true) }()
	b.requireWaiting(t, 1)
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.Error(t, b.mustEnter(t, "ann").reserve(soon, 0, true), "a new large call waits for its turn")
	require.NoError(t, first.resume(t.Context()))
	resumed := make(chan error, 1)
	go func() { resumed <- second.resume(t.Context()) }()
	b.requireWaiting(t, 2)
	require.Empty(t, granted)
	first.pause()
	require.NoError(t, <-resumed)
	require.Empty(t, granted)
	second.release()
	require.NoError(t, <-granted)
}

// However many callers there are, their large calls leave memory to small calls, and their small calls
// leave memory to admins and the trigger.
func TestMemoryIsReservedForSmallCallsAndAdmins(t *testing.T) {
	t.Parallel()
	b := newMemoryBudget(80, 0.25)
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	for i := range 10 {
		m := b.mustEnter(t, string(rune('a'+i)))
		if m.reserve(soon, 15*mebibyte, true) != nil {
			m.release()
		}
	}
	require.LessOrEqual(t, b.inUse(), int64(60*mebibyte+mebibyte))
	require.NoError(t, b.mustEnter(t, "ann").reserve(t.Context(), 100_000, false))
	for err := error(nil); err == nil; { // bob reserves memory until he is refused
		var m *callMemory
		if m, err = b.enter("bob", false, false); err == nil {
			err = m.tryReserve(mebibyte)
		}
	}
	for err := error(nil); err == nil; { // then eve begins calls until she is refused
		_, err = b.enter("eve", false, false)
	}
	admin, err := b.enter("admin", true, false)
	require.NoError(t, err)
	require.NoError(t, admin.reserve(t.Context(), mebibyte, true))
}

// The events of all callers come from one caller, the trigger. Several batches are handled at once.
// Those that do not fit wait for memory.
func TestLargeEventCallsWaitForMemory(t *testing.T) {
	t.Parallel()
	b := newMemoryBudget(80, 0.25)
	b.largeAtOnce = 1
	reserve := func(bytes int64) (*callMemory, error) {
		m, err := b.enter("trigger", false, true)
		require.NoError(t, err)
		defer m.pause()
		return m, m.reserve(t.Context(), bytes, true)
	}
	largest, err := reserve(16 * mebibyte)
	require.NoError(t, err)
	for range 4 {
		_, err := reserve(5 * mebibyte)
		require.NoError(t, err, "a batch that fits")
	}
	granted := make(chan error, 1)
	go func() {
		_, err := reserve(5 * mebibyte)
		granted <- err
	}()
	b.requireWaiting(t, 1) // events may use only half of the budget
	require.NoError(t, b.mustEnter(t, "ann").reserve(t.Context(), 15*mebibyte, true), "others do not wait")
	largest.release()
	require.NoError(t, <-granted)
}

// Large batches of events would use all processors if all were decoded at once.
func TestLargeEventCallsAreDecodedOneAtATime(t *testing.T) {
	t.Parallel()
	b := newMemoryBudget(80, 0.25)
	b.largeAtOnce = 1
	enter := func() *callMemory {
		m, err := b.enter("trigger", false, true)
		require.NoError(t, err)
		return m
	}
	first := enter()
	require.NoError(t, first.reserve(t.Context(), largeEvents+1, true))
	require.NoError(t, enter().reserve(t.Context(), largeEvents, true), "a smaller reservation does not wait")
	granted := make(chan error, 1)
	go func() { granted <- enter().reserve(t.Context(), largeEvents+1, true) }()
	b.requireWaiting(t, 1)
	first.pause()
	require.NoError(t, <-granted)
}

// Unread responses are charged to their caller. Further calls of this caller are refused.
func TestUnreadResponsesUseMemory(t *testing.T) {
	t.Parallel()
	b := newMemoryBudget(80, 0.25)
	slow := b.mustEnter(t, "mallory")
	slow.resize(21 * mebibyte)
	_, err := b.enter("mallory", false, false)
	require.Equal(t, task.CodeServerBusy, task.CodeOf(err))
	b.mustEnter(t, "ann")
	slow.release()
	b.mustEnter(t, "mallory")
}

func TestEachCallIsChargedToItsCaller(t *testing.T) {
	t.Parallel()
	b := newMemoryBudget(80, 0.25)
	var last *callMemory
	for range b.share/callCharge + 1 {
		last = b.mustEnter(t, "mallory")
	}
	_, err := b.enter("mallory", false, false)
	require.Equal(t, task.CodeServerBusy, task.CodeOf(err))
	require.NoError(t, last.reserve(t.Context(), minShare, true), "the largest batch still fits")
	b.mustEnter(t, "ann").release()
	require.NotContains(t, b.callers, "ann", "nothing is kept of callers without calls")
	last.release()
	b.mustEnter(t, "mallory")
}

// Four callers each send as many half-sent small bodies as their share of SENDONCE_MAX_CALLS allows. There is memory left
// for other callers.
func TestHalfSentBodiesUseBoundedMemory(t *testing.T) {
	t.Parallel()
	const share, size = 256, 16_000
	b := newMemoryBudget(80, 0.25)
	reader := func(caller string) *bodyReader {
		return &bodyReader{memory: b.mustEnter(t, caller), charge: new(Route).bodyCharge}
	}
	for i := range 4 * share {
		require.NoError(t, reader(string(rune('a'+i%4))).grow(t.Context(), size))
	}
	fifth := reader("eve")
	body, err := fifth.read(t.Context(), strings.NewReader(strings.Repeat("x", size)), size, func() error { return nil })
	require.NoError(t, err)
	require.Len(t, body, size)
	require.Equal(t, new(Route).bodyCharge(size+1), fifth.memory.extra, "the decoded values are charged")
}
