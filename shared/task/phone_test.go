package task

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestValidPhone(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"110", "10086", "13800138000", "+8613800138000", "0000000000000000000", "+1234567890123456789"} {
		require.True(t, ValidPhone(s), "%q", s)
	}
	for _, s := range []string{
		"", "+", "11", "+11", "12345678901234567890", "++110", "110+", "138 0013", "138-0013", "abc",
		"１３８", "110\n", " 110", "٣٣٣", "110\x00",
	} {
		require.False(t, ValidPhone(s), "%q", s)
	}
}

func TestMaskPhone(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"":                     "",
		"13800138000":          "138****8000",
		"+8613800138000":       "+861******8000",
		"1234567890123456789":  "123************6789",
		"+1234567890123456789": "+123************6789",
		"0123456789":           "01*****789",
		"12345678":             "12****78",
		"+12345":               "+1***5",
		"10086":                "1***6",
		"1234":                 "1**4",
		"110":                  "**0",
		"12":                   "***",
		"a secret, no number":  "***",
		"138\n0013":            "***",
	} {
		require.Equal(t, want, MaskPhone(s), "%q", s)
	}
}

func TestAShortNumberNeverShowsMoreThanHalfOfItsDigits(t *testing.T) {
	t.Parallel()
	for n := 3; n < 11; n++ {
		masked := MaskPhone(strings.Repeat("7", n))
		require.Len(t, masked, n)
		require.LessOrEqual(t, 2*strings.Count(masked, "7"), n)
	}
}

func FuzzValidPhone(f *testing.F) {
	form := regexp.MustCompile(`^\+?[0-9]{3,19}$`)
	f.Add("+8613800138000")
	f.Add("12")
	f.Add("110\n")
	f.Fuzz(func(t *testing.T, s string) {
		require.Equal(t, form.MatchString(s), ValidPhone(s))
	})
}
