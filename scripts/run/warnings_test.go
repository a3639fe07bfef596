package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestWarningsShowsFailingEndpoints(t *testing.T) {
	t.Parallel()
	out := &sandbox.LogBuffer{}
	w := &warnings{out: out}
	const text = `{"level":"WARN","msg":"webhook endpoint fails","function":"deliver","endpoint_id":"0198","host":"127.0.0.1:9000","error":"connection refused"}
{"level":"INFO","msg":"call","path":"/about/webhook endpoint fails"}
no JSON: webhook endpoint fails
{"msg":"webhook endpoint disabled","endpoint_id":"0198","host":"127.0.0.1:9000","reason":"gone","error":"returned 410 Gone"}
{"msg":"webhook endpoint recovered","endpoint_id":"0199","host":"shop.test"}
`
	for i := range text {
		n, err := w.Write([]byte(text[i : i+1]))
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	require.Equal(t, `webhook   127.0.0.1:9000 fails: connection refused; endpoint 0198
webhook   127.0.0.1:9000 disabled (gone): returned 410 Gone; endpoint 0198
webhook   shop.test recovered; endpoint 0199
`, out.String())
}

func TestWarningsContinueAfterLogIsEmptied(t *testing.T) {
	t.Parallel()
	log, err := openLog(t.TempDir(), "sendonce.log")
	require.NoError(t, err)
	defer log.Close()
	fails := func(host string) {
		_, err := fmt.Fprintf(log, "{\"msg\":\"webhook endpoint fails\",\"endpoint_id\":\"0198\",\"host\":%q}\n", host)
		require.NoError(t, err)
	}
	fails("before.test")
	ctx, stop := context.WithCancel(t.Context())
	out, ended := &sandbox.LogBuffer{}, make(chan struct{})
	shown := func(text string) func() bool {
		return func() bool { return strings.Contains(out.String(), text) }
	}
	go func() { defer close(ended); showWarnings(ctx, log.Name(), out) }()
	require.Eventually(t, func() bool {
		fails("a-long-name.one.test") // until showWarnings reads the file
		return shown("one.test fails")()
	}, time.Minute, 50*time.Millisecond)
	require.NoError(t, log.Truncate(0))
	fails("two.test")
	require.Eventually(t, shown("two.test fails"), 10*time.Second, 10*time.Millisecond)
	stop()
	<-ended
	require.NotContains(t, out.String(), "before.test")
}
