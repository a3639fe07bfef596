package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

func TestStartFailsWithoutEncryptionKey(t *testing.T) {
	t.Parallel()
	bin := cluster.Binary(t)
	for target, starts := range map[string]bool{"webhooks": false, "deliver": false, "wechat": false, "": false, "claim": true} {
		p := cluster.StartProcess(t, bin, cluster.Settings("postgres://nobody@127.0.0.1:1/none", "FUNCTION_TARGET="+target, "SENDONCE_ENCRYPTION_KEYS="))
		if starts {
			require.NoError(t, p.WaitFor(t.Context(), `"listening"`))
			_, err := p.Terminate(time.Second)
			require.NoError(t, err)
			continue
		}
		cluster.WaitExit(t, p)
		require.Equal(t, 2, p.ExitCode(), target)
		require.Contains(t, p.Output(), "SENDONCE_ENCRYPTION_KEYS is not set; give a key", target)
	}
}
