package bus

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus/bustest"
)

// callerChanges collects the notifications of changed callers.
type callerChanges struct {
	mu         sync.Mutex
	names      []string
	subscribed int
}

func followCallers(b *Bus) *callerChanges {
	f := &callerChanges{}
	b.OnCallerChanged(func(name string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.names = append(f.names, name)
	}, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.subscribed++
	})
	return f
}

// has returns a condition: names were received, this many, and the callback subscribed was called this many times.
func (f *callerChanges) has(names, subscribed int) func() bool {
	return func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.names) == names && f.subscribed == subscribed
	}
}

func TestChangeOfCallerReachesAllProcesses(t *testing.T) {
	t.Parallel()
	server := bustest.NewBroker(t)
	here, there := newBus(t, server.URL()), newBus(t, server.URL())
	self, other := followCallers(here), followCallers(there)
	bustest.Eventually(t, self.has(0, 1), "subscribed")
	bustest.Eventually(t, other.has(0, 1), "subscribed")
	here.NotifyCallerChanged(bustest.Within(t, bustest.Soon), "ann")
	bustest.Eventually(t, self.has(1, 1), "the sending process is notified")
	bustest.Eventually(t, other.has(1, 1), "another process is notified")
	require.Equal(t, []string{"ann"}, other.names)

	server.Stop()
	here.NotifyCallerChanged(bustest.Within(t, dialTimeout), "bob")
	require.NotZero(t, here.FailedSends())
	server.Start(server.Dir)
	bustest.Eventually(t, self.has(2, 2), "subscribed is called again, and the unsent notification is sent")
	require.Equal(t, []string{"ann", "bob"}, self.names)
}
