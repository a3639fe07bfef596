package sandbox

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// failures records the calls of Errorf.
type failures struct {
	testing.TB
	all []string
}

func (f *failures) Helper()                        {}
func (f *failures) Errorf(format string, _ ...any) { f.all = append(f.all, format) }

func TestCheckLeaksFindsSecretsAndWholePhoneNumbers(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		`{"phone":"13800138000"}`, `no such number: +8613800138000`, `008613800138000 is blocked`, "13800138000",
		`secret whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw`, `dial postgres://owner:pass@host/db`, `Authorization: Basic YWRtaW46c2VjcmV0`,
		`GET /cgi-bin/x?access_token=abc`, `token kHhwC0mKZ1hZ6Yx3J8m4eBvN2sQ5tR7uW9xA1cD3fG4 refused`, "key " + EncryptionKey,
	} {
		var f failures
		CheckLeaks(&f, "log", "a line before\n"+line+"\n")
		require.Len(t, f.all, 1, line)
	}
	for _, line := range []string{
		`{"phone":"138****8000","ms":1763823600123,"id":"0198c0de-1380-7013-8001-13800138000a"}`, `postgres://owner@host/db`, `nats://127.0.0.1:4222`,
		`sha256 ` + strings.Repeat("ab", 32), `the role basic is needed`, `1.13800138000`,
	} {
		var f failures
		CheckLeaks(&f, "log", line)
		require.Empty(t, f.all, line)
	}
}
