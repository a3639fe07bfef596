package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestASecretThatCannotBeDecryptedHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	w := openWebhooks(t)
	locked, other := newReceiver(t, nil), newReceiver(t, nil)
	secret := w.endpoint(locked.URL).Secret
	neighbour := w.endpoint(other.URL)
	w.looker.exec(`update webhook_endpoints set description = secret, secret = 'enc2.00000000.AAAA' where url = $1`, locked.URL)

	w.finishOne()
	other.event(t, 1, neighbour.Secret)
	require.NoError(t, w.process.WaitFor(t.Context(), "signing secret cannot be decrypted"))
	require.Zero(t, locked.got())
	waiting := waitDeliveries(w, "pending", 1)
	require.Zero(t, waiting[0].Attempts, "no try is used up")
	require.Empty(t, waiting[0].Tries)

	w.looker.exec(`update webhook_endpoints set secret = description where url = $1`, locked.URL)
	makeDue(w)
	locked.event(t, 1, secret)
}

func TestTheStoredSecretsMoveToANewKeyByCommand(t *testing.T) {
	t.Parallel()
	url, bin := sandbox.NewDatabase(t), binary(t)
	s := serveHandler(t, handler(t, url)).connect(url)
	_, secret := addEndpoint(s, `{"url":"https://shop.example/hook"}`)
	const another = "YW5vdGhlci1rZXktb2YtdGhpcnR5LXR3by1ieXRlcyE="

	reencrypt := func(keys string) (code int, says string) {
		env := append(settings(url), "SENDONCE_ENCRYPTION_KEYS="+keys) // the last one counts
		p := startProcess(t, bin, env, "reencrypt")
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

func TestAFunctionThatStoresSecretsDoesNotStartWithoutAKey(t *testing.T) {
	t.Parallel()
	bin := binary(t)
	for target, starts := range map[string]bool{"webhooks": false, "deliver": false, "wechat": false, "": false, "claim": true} {
		env := []string{}
		for _, pair := range settings("postgres://nobody@127.0.0.1:1/none", "FUNCTION_TARGET="+target) {
			if !strings.HasPrefix(pair, "SENDONCE_ENCRYPTION_KEYS=") {
				env = append(env, pair)
			}
		}
		p := startProcess(t, bin, env)
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
