package wechat

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestErrorsHaveNoTokenAndNoSecret(t *testing.T) {
	t.Parallel()
	const value = "the+access/token"
	requireClean := func(t *testing.T, text string) {
		t.Helper()
		require.NotEmpty(t, text)
		require.NotContains(t, text, value[:secretPart])
		require.NotContains(t, text, value[len(value)-secretPart:])
		require.NotContains(t, text, url.QueryEscape(value))
		require.NotContains(t, text, sandbox.WeChatSecret)
	}
	errmsg := fmt.Sprintf("no \x00%s, %s\n%s", value[:3]+"\x01"+value[3:], url.QueryEscape(value), sandbox.WeChatSecret)
	errmsgJSON, err := json.Marshal(errmsg)
	require.NoError(t, err)
	for name, response := range map[string]string{
		"token and secret in errmsg":    fmt.Sprintf("HTTP/1.1 200 OK\r\n\r\n{\"errcode\":47003,\"errmsg\":%s}", errmsgJSON),
		"a part of the token in errmsg": fmt.Sprintf("HTTP/1.1 200 OK\r\n\r\n{\"errcode\":47003,\"errmsg\":\"bad token %s...\"}", value[:14]),
		"no HTTP":                       value + url.QueryEscape(value) + sandbox.WeChatSecret + "\r\n\r\n",
		"the connection closes":         "",
		"truncated header":              "HTTP/1.1 200 OK\r\nX: " + value,
		"truncated body":                "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + value,
		"the token in the status":       "HTTP/1.1 500 " + value + "\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := sandbox.ServeTCP(t, func(_ int, conn net.Conn) {
				if r, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					_, _ = io.Copy(io.Discard, r.Body)
					_, _ = io.WriteString(conn, response)
				}
			})
			c := newTestClient(t, "http://"+address, time.Minute, new(memoryTokens))
			requireClean(t, c.send(t.Context(), token{Value: value}, testMessage()).message)
			_, err := c.fetchToken(t.Context())
			require.Error(t, err)
			require.NotContains(t, err.Error(), sandbox.WeChatSecret)
			require.NotContains(t, tokenErrorResult(err).message, sandbox.WeChatSecret)
		})
	}

	t.Run("connection refused", func(t *testing.T) {
		t.Parallel()
		c := newTestClient(t, "http://127.0.0.1:1", time.Minute, new(memoryTokens))
		requireClean(t, c.send(t.Context(), token{Value: value}, testMessage()).message)
	})
}
