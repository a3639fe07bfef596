package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestUndecryptableSecretDelaysNoOther(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t, cluster.AllowLoopback)
	locked, other := cluster.NewReceiver(t, nil), cluster.NewReceiver(t, nil)
	secret := w.AddEndpoint(locked.URL).Secret
	neighbour := w.AddEndpoint(other.URL)
	w.Admin.Exec(`update webhook_endpoints set description = secret, secret = 'enc2.00000000.AAAA' where url = $1`, locked.URL)

	w.FinishTask()
	other.Event(t, 1, neighbour.Secret)
	require.NoError(t, w.Process(cluster.All).WaitFor(t.Context(), "signing secret cannot be decrypted"))
	require.Zero(t, locked.Calls())
	waiting := cluster.WaitDeliveries(w, "pending", 1)
	require.Zero(t, waiting[0].Attempts, "no try is used up")
	require.Empty(t, waiting[0].Tries)

	w.Admin.Exec(`update webhook_endpoints set secret = description where url = $1`, locked.URL)
	cluster.MakeDue(w)
	locked.Event(t, 1, secret)
}

func TestReencryptMovesSecretsToNewKey(t *testing.T) {
	t.Parallel()
	url, bin := sandbox.NewDatabase(t), cluster.Binary(t)
	s := cluster.ServeHandler(t, cluster.Handler(t, url)).Connect(url)
	_, secret := cluster.RegisterEndpoint(s, `{"url":"https://shop.example/hook"}`)
	const another = "YW5vdGhlci1rZXktb2YtdGhpcnR5LXR3by1ieXRlcyE="

	reencrypt := func(keys string) (code int, says string) {
		env := append(cluster.Settings(url), "SENDONCE_ENCRYPTION_KEYS="+keys) // the last one counts
		p := cluster.StartProcess(t, bin, env, "reencrypt")
		<-p.Exited()
		return p.ExitCode(), p.Output()
	}
	code, says := reencrypt(another)
	require.Equal(t, 1, code)
	require.Contains(t, says, "is not among the 1 that are set")
	code, says = reencrypt(another + "," + sandbox.EncryptionKey)
	require.Zero(t, code, says)
	require.Contains(t, says, "encrypted with the first key: 1 of webhook_endpoints, 0 of provider_tokens")
	code, says = reencrypt(another)
	require.Zero(t, code, says)
	require.NotContains(t, says, secret)
	require.NotContains(t, says, another)
}

func TestStartFailsWithoutEncryptionKey(t *testing.T) {
	t.Parallel()
	bin := cluster.Binary(t)
	for target, starts := range map[string]bool{"webhooks": false, "deliver": false, "wechat": false, "": false, "claim": true} {
		env := []string{}
		for _, pair := range cluster.Settings("postgres://nobody@127.0.0.1:1/none", "FUNCTION_TARGET="+target) {
			if !strings.HasPrefix(pair, "SENDONCE_ENCRYPTION_KEYS=") {
				env = append(env, pair)
			}
		}
		p := cluster.StartProcess(t, bin, env)
		if starts {
			require.NoError(t, p.WaitFor(t.Context(), `"listening"`))
			_, err := p.Terminate(time.Second)
			require.NoError(t, err)
			continue
		}
		<-p.Exited()
		require.Equal(t, 2, p.ExitCode(), target)
		require.Contains(t, p.Output(), "SENDONCE_ENCRYPTION_KEYS is not set; give a key", target)
	}
}
