package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestWarningsShowsFailingEndpoints(t *testing.T) {
	t.Parallel()
	log, out := &sandbox.LogBuffer{}, &sandbox.LogBuffer{}
	w := &warnings{log: log, out: out}
	const text = `{"level":"WARN","msg":"webhook endpoint fails","function":"deliver","endpoint_id":"0198","host":"127.0.0.1:9000","error":"connection refused"}
{"level":"INFO","msg":"answered","path":"/about/webhook endpoint fails"}
no JSON: webhook endpoint fails
{"msg":"webhook endpoint disabled","endpoint_id":"0198","host":"127.0.0.1:9000","reason":"gone","error":"answered 410 Gone"}
{"msg":"webhook endpoint recovered","endpoint_id":"0199","host":"shop.test"}
`
	for i := range text {
		n, err := w.Write([]byte(text[i : i+1]))
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	require.Equal(t, text, log.String())
	require.Equal(t, `webhook   127.0.0.1:9000 fails: connection refused; endpoint 0198
webhook   127.0.0.1:9000 disabled (gone): answered 410 Gone; endpoint 0198
webhook   shop.test recovered; endpoint 0199
`, out.String())
}
