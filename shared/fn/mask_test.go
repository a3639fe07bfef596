package fn

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestLoggedRefusalMasksPhoneNumbers(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"body.13900139000 is not a known field", "+8613900139000", "a 13900139000 b 13800138000", "13900139000"} {
		masked := maskNumbers(text)
		sandbox.CheckLeaks(t, "the log", masked)
		require.NotContains(t, masked, "13900139000")
	}
	for _, text := range []string{"", "items[3].phone_number: must be 5 to 15 digits", "at byte 123456", "app_id"} {
		require.Equal(t, text, maskNumbers(text))
	}
}
