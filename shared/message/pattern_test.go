package message

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestValidPattern(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"a", "msg.orders.paid", "*", ">", "msg.*.paid", "msg.orders.>", "*.*.>", "a:b/c.*", strings.Repeat("a", 255)} {
		require.True(t, ValidPattern(good), good)
	}
	for _, bad := range []string{"", ".", "a.", ".a", "a..b", "a b", "a*", "a.*b", ">.a", "a.>.b", "a>", "a.>>", "中", "a\x00", strings.Repeat("a", 256)} {
		require.False(t, ValidPattern(bad), bad)
	}
}

func TestPatternCovers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, subject string
		covered          bool
	}{
		{"msg.orders.paid", "msg.orders.paid", true},
		{"msg.orders.paid", "msg.orders.paid.eu", false},
		{"msg.orders.paid", "msg.orders", false},
		{"msg.orders.paid", "msg.orders.Paid", false},
		{"msg.orders.>", "msg.orders.paid", true},
		{"msg.orders.>", "msg.orders.paid.eu", true},
		{"msg.orders.>", "msg.orders", false},
		{"msg.orders.>", "msg.ordersx.paid", false},
		{"msg.*.paid", "msg.orders.paid", true},
		{"msg.*.paid", "msg.orders.eu.paid", false},
		{"msg.*", "msg", false},
		{"*", "msg", true},
		{"*", "msg.orders", false},
		{"*.>", "msg", false},
		{">", "msg", true},
		{">", "msg.orders.paid", true},
		{">", "", false},
		{"*", "", false},
	} {
		require.Equal(t, c.covered, coveredBy([]string{"other", c.pattern}, c.subject), "%s of %s", c.subject, c.pattern)
		require.True(t, ValidPattern(c.pattern))
	}
	require.False(t, coveredBy(nil, "msg"), "without a pattern nothing is covered")
}
