package deliver

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store/webhooks"
	"github.com/sendonce/sendonce/shared/task"
)

func TestFlappingEndpointIsLoggedOncePerState(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	d := &deliverer{env: &fn.Env{Log: slog.New(slog.NewJSONHandler(&log, nil))}}
	ok, fails := message.EndpointHealth{}, message.EndpointHealth{FailingSince: time.Now()}
	flapping, other := task.NewID(), task.NewID()
	for range 50 {
		d.logChange(webhooks.EndpointChange{ID: flapping, Before: ok, After: fails})
		d.logChange(webhooks.EndpointChange{ID: flapping, Before: fails, After: ok})
	}
	d.logChange(webhooks.EndpointChange{ID: other, Before: ok, After: fails})
	require.Equal(t, 3, strings.Count(log.String(), "\n"), "one line for each endpoint and state")
	require.Equal(t, 1, strings.Count(log.String(), other.String()))
	d.logChange(webhooks.EndpointChange{ID: flapping, Before: fails, After: message.EndpointHealth{DisabledReason: "gone"}})
	require.Contains(t, log.String(), "webhook endpoint disabled")
}
