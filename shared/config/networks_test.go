package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDecodeRefusesInvalidNetworks(t *testing.T) {
	t.Parallel()
	var n Networks
	require.ErrorContains(t, n.Decode("10.0.0.0/8,proxy.local"), `"proxy.local" is no network`)
	require.ErrorContains(t, n.Decode("10.0.0.0/33"), `"10.0.0.0/33" is no network`)
}
