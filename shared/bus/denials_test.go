package bus

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus/bustest"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// NATS does not reply to a denied publication, and only reports an asynchronous error. Many denied messages
// of one caller do not delay the messages of other callers.
func TestDeniedFloodDoesNotDelayOthers(t *testing.T) {
	t.Parallel()
	g := newSecuredBroker(t)
	for name, subject := range map[string]func(n int) string{
		"to one subject":                          func(int) string { return "zz.same" },
		"to many subjects":                        func(n int) string { return fmt.Sprintf("zz.%d", n) },
		"to subjects with quotes and backslashes": func(n int) string { return fmt.Sprintf(`zz.%d"\'`, n) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			relay := g.bus("relay")
			const batches, size = 12, 500
			for n := range batches {
				batch := make([]Message, 0, size+2)
				for i := range size {
					batch = append(batch, Message{Subject: subject(n*size + i), Event: bustest.Event("denied")})
				}
				id := fmt.Sprint(t.Name(), n)
				batch = append(batch, Message{Subject: "msg.orders.paid", Event: bustest.Event(id)}, Message{Subject: "inbox.ann", Event: bustest.Event(id)})
				began := time.Now()
				errs := relay.Publish(bustest.Within(t, bustest.Soon), batch)
				require.Less(t, time.Since(began), bustest.Soon, "no batch waits until its deadline")
				for _, err := range errs[:size] {
					require.ErrorIs(t, err, ErrRefused)
					require.ErrorContains(t, err, "no stream has the subject zz.")
				}
				require.NoError(t, errs[size])
				require.NoError(t, errs[size+1])
			}
			require.LessOrEqual(t, relay.nc.NumSubscriptions(), 3, "no subscription of a Publish is left")
		})
	}
}

// Callers choose subjects, so denials are logged at most once a minute, whatever their number.
func TestDenialsAreLoggedOnceAMinute(t *testing.T) {
	t.Parallel()
	g, lines := newSecuredBroker(t), &sandbox.LogBuffer{}
	relay := openBus(t, Config{URL: g.URLAs("relay")}, lines)
	deny := func(n int) {
		batch := make([]Message, n)
		for i := range batch {
			batch[i] = Message{Subject: fmt.Sprintf("zz13912345678.%d.%d", n, i), Event: bustest.Event("denied")}
		}
		for _, err := range relay.Publish(bustest.Within(t, bustest.Soon), batch) {
			require.ErrorIs(t, err, ErrRefused)
		}
	}
	count := func() int { return strings.Count(lines.String(), "Permissions Violation") }
	deny(100)
	require.EqualValues(t, 100, relay.Denied())
	require.Equal(t, 1, count(), lines.String())

	relay.denied.lines.Every = time.Nanosecond // from now on, each denial is logged
	deny(10)
	require.Equal(t, 11, count(), lines.String())
	require.Contains(t, lines.String(), "unlogged=99")
	require.NotContains(t, lines.String(), "13912345678")
}
