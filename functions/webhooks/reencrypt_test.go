package webhooks_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestReencryptMovesSecretsToNewKey(t *testing.T) {
	t.Parallel()
	url, bin := sandbox.NewDatabase(t), cluster.Binary(t)
	s := cluster.ServeOn(t, url)
	_, secret := cluster.RegisterEndpoint(s, `{"url":"https://shop.example/hook"}`)
	cluster.RegisterEndpoint(s, `{"url":"https://robot.example/","events":["webhook.disabled"],"format":"wecom"}`)
	cluster.RegisterEndpoint(s, `{"url":"https://robot.example/","events":["webhook.disabled"],"format":"feishu","secret":"of-the-robot"}`)
	const newKey = "YW5vdGhlci1rZXktb2YtdGhpcnR5LXR3by1ieXRlcyE="

	reencrypt := func(keys string) (code int, output string) {
		env := append(cluster.Settings(url), "SENDONCE_ENCRYPTION_KEYS="+keys) // the last value of a name wins
		p := cluster.StartProcess(t, bin, env, "reencrypt")
		<-p.Exited()
		return p.ExitCode(), p.Output()
	}
	code, output := reencrypt(newKey)
	require.Equal(t, 1, code)
	require.Contains(t, output, "is not among the 1 keys that are set")
	code, output = reencrypt(newKey + "," + sandbox.EncryptionKey)
	require.Zero(t, code, output)
	require.Contains(t, output, "encrypted with the first key: 2 of webhook_endpoints, 0 of provider_tokens")
	code, output = reencrypt(newKey)
	require.Zero(t, code, output)
	require.NotContains(t, output, secret)
	require.NotContains(t, output, newKey)
}
