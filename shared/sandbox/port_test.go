package sandbox

import (
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFreePortIsBelowSystemPorts(t *testing.T) {
	t.Parallel()
	port, err := FreePort()
	require.NoError(t, err)
	ours, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
	require.NoError(t, err, "the port is free")
	defer ours.Close()
	others, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer others.Close()
	require.Greater(t, others.Addr().(*net.TCPAddr).Port, port, "the system assigns higher ports")
}
