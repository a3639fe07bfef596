package sandbox

import (
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFreePortIsBelowEphemeralPorts(t *testing.T) {
	t.Parallel()
	port, err := FreePort()
	require.NoError(t, err)
	free, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
	require.NoError(t, err, "the port is free")
	defer free.Close()
	assigned, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer assigned.Close()
	require.Greater(t, assigned.Addr().(*net.TCPAddr).Port, port, "the system assigns higher ports")
}
