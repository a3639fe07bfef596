package sender

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMaskShowsOnlyFirstAndLastDigits(t *testing.T) {
	t.Parallel()
	for phone, want := range map[string]string{
		"13800138000": "138****8000", "+8613800138000": "+86****8000", "12345678": "123****5678",
		"1234567": "1****7", "12345": "1****5", "1234": "****", "": "****",
	} {
		require.Equal(t, want, mask(phone), phone)
	}
}

func TestConsoleRemovesControlCharacters(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	result := NewConsole(&out).Send(t.Context(), Message{PhoneNumber: "13800138000", Content: "你好\n\x1b[2Jworld\u202e👍"})
	require.Equal(t, Result{Outcome: OK}, result)
	require.Equal(t, "sent to 138****8000: 你好  [2Jworld 👍\n", out.String())
}

type closedPipe struct{}

func (closedPipe) Write([]byte) (int, error) { return 0, errors.New("closed pipe") }

func TestConsoleReportsWriteErrorsAsUnknown(t *testing.T) {
	t.Parallel()
	require.Equal(t, Result{Outcome: Unknown, Message: "closed pipe"}, NewConsole(closedPipe{}).Send(t.Context(), Message{}))
}
