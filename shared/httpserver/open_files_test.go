package httpserver

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Half-sent headers of one client must not use up the files that the process may open. The test starts itself as a server.
func TestManyConnectionsLeaveFilesFree(t *testing.T) {
	t.Parallel()
	const child = "SENDONCE_TEST_SERVER"
	if os.Getenv(child) != "" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		fmt.Println(l.Addr())
		s := New(http.NotFoundHandler(), 1000, log.New(os.Stdout, "", 0))
		go func() { _ = s.Serve(l) }() // until the process exits
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	server := exec.CommandContext(t.Context(), "sh", "-c", `ulimit -n 120 && exec "$0" -test.run='^TestManyConnectionsLeaveFilesFree$'`, os.Args[0])
	server.Env = append(os.Environ(), child+"=1")
	stdin, err := server.StdinPipe()
	require.NoError(t, err)
	stdout, err := server.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, server.Start())
	output := bufio.NewReader(stdout)
	address, err := output.ReadString('\n')
	require.NoError(t, err)
	address = strings.TrimSpace(address)

	for range 200 {
		dial(t, address).send("GET / HTTP/1.1\r\nX: ")
	}
	c := dial(t, address)
	c.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	require.Equal(t, 404, c.status())
	require.NoError(t, stdin.Close())
	rest, err := io.ReadAll(output)
	require.NoError(t, err)
	require.NoError(t, server.Wait())
	require.NotContains(t, string(rest), "too many open files")
}
