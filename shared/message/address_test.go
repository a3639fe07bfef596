package message

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseAddress(t *testing.T) {
	t.Parallel()
	for to, want := range map[string]Address{
		"orders.paid":                     {Subject, "orders.paid"},
		"msg.default.x":                   {Subject, "msg.default.x"},
		"waker.x":                         {Subject, "waker.x"},
		"a:b/c":                           {Subject, "a:b/c"},
		strings.Repeat("a", 255):          {Subject, strings.Repeat("a", 255)},
		"https://example.com/x?y=1":       {URL, "https://example.com/x?y=1"},
		"http://localhost:9000/x":         {URL, "http://localhost:9000/x"},
		"user:ann.b-c_9":                  {User, "ann.b-c_9"},
		"user:" + strings.Repeat("a", 50): {User, strings.Repeat("a", 50)},
	} {
		got, err := ParseAddress(to)
		require.NoError(t, err, to)
		require.Equal(t, want, got, to)
		require.Equal(t, to, got.String())
	}
}

func TestParseAddressErrors(t *testing.T) {
	t.Parallel()
	for _, to := range []string{
		"", ".", "a.", ".a", "a..b", "a b", "a\tb", "a.*", "a.>", ">", "中.x", "a\x00", strings.Repeat("a", 256),
		"wake.relay", "wake", "sched.x", "notify.callers", "evt.x", "dlq.x", "acc.0.x", "inbox.ann", "INBOX.ann", "_INBOX.x", "$JS.API.x", "$SYS",
		"ftp://example.com/", "http:///x", "https://", "https:///x", "https://u:p@example.com/",
		"https://example.com/#x", "https://example.com/" + strings.Repeat("x", 2000), "://x", "https://%zz/",
		"user:", "user:a b", "user:*", "user:中", "user:" + strings.Repeat("a", 51),
	} {
		_, err := ParseAddress(to)
		require.Error(t, err, to)
	}
}

func TestCheckDependsOnKind(t *testing.T) {
	t.Parallel()
	for _, good := range []Address{{Subject, "msg.orders.a://b"}, {User, "bob"}, {URL, "https://example.com/"}} {
		require.NoError(t, good.Check(), good)
	}
	for _, bad := range []Address{{Subject, "$JS.API.STREAM.PURGE.EVENTS"}, {User, "b*b"}, {URL, "evt.x"}, {Kind(7), "orders"}} {
		require.Error(t, bad.Check(), bad)
	}
}

func TestSubjectOf(t *testing.T) {
	t.Parallel()
	got, err := SubjectOf("orders", "paid.eu")
	require.NoError(t, err)
	require.Equal(t, Address{Subject, "msg.orders.paid.eu"}, got)
	got, err = SubjectOf("", "paid")
	require.NoError(t, err)
	require.Equal(t, Address{Subject, "msg.default.paid"}, got)
	for _, bad := range [][2]string{{"a.b", "c"}, {"a", ""}, {"a", "b..c"}, {"a*", "b"}, {"a", ">"}, {"a b", "c"}, {"a", strings.Repeat("x", 250)}} {
		_, err := SubjectOf(bad[0], bad[1])
		require.Error(t, err, bad)
	}
}

func TestIDIsUniqueAndStable(t *testing.T) {
	t.Parallel()
	id := ID(7, "shop", "order-1")
	require.Equal(t, "12271fe2f66c5f8b902aea98ca8bf637", fmt.Sprintf("%x", id), "stored ids must never change")
	seen := map[[16]byte]bool{id: true}
	for _, other := range [][16]byte{ID(8, "shop", "order-1"), ID(7, "shoporder", "-1"), ID(7, "shop", "order-2"), ID(7, "", "shoporder-1"), ID(-7, "shop", "order-1")} {
		require.False(t, seen[other])
		seen[other] = true
	}
}
