package fn

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestVisitorsThatReadSlowlyKeepNobodyFromPages(t *testing.T) {
	t.Parallel()
	large := bytes.Repeat([]byte("x"), 8<<20) // more than the buffers of a connection
	h := serveFunctions(t, HTTP("pages", func(*Env, struct{}) Routes {
		return Routes{
			"GET /large": Page(func(w http.ResponseWriter, _ *Visit) { _, _ = w.Write(large) }),
			"GET /login": Page(func(w http.ResponseWriter, _ *Visit) { _, _ = io.WriteString(w, "login") }),
		}
	}))
	target := strings.TrimPrefix(h.url, "http://")
	for i := range anonymousPages {
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i/anonymousPerAddress))}}
		conn, err := from.DialContext(t.Context(), "tcp", target)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		require.NoError(t, conn.SetDeadline(time.Now().Add(waitAtMost)))
		_, err = fmt.Fprint(conn, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
		require.NoError(t, err)
		_, err = io.ReadFull(conn, make([]byte, 1))
		require.NoError(t, err, "the response has begun, and the client reads no more")
	}
	res, err := http.Get(h.url + "/login")
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, http.StatusOK, res.StatusCode)
}
