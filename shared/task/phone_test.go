package task

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPhone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		country    Country
		text, want string
	}{
		// Without a country only the punctuation is removed.
		{"", "13800138000", "13800138000"},
		{"", "138-0013-8000", "13800138000"},
		{"", "+8613800138000", "+8613800138000"},
		{"", "+86 138 0013 8000", "+8613800138000"},
		{"", "0086 138 0013 8000", "008613800138000"},
		{"", "+1 (415) 555-2671", "+14155552671"},
		{"", "+1.415.555.2671", "+14155552671"},
		{"", "[415] 555 2671", "4155552671"},
		{"", "(+86) 13800138000", "+8613800138000"},
		{"", " 13800138000 ", "13800138000"},
		{"", "(020) 7946 0018", "02079460018"},
		{"", "+44 (0)20 7946 0018", "+442079460018"},
		{"", "0044 (0)20 7946 0018", "00442079460018"},
		{"", "+39 (0)6 1234 5678", "+390612345678"},
		{"", "+ 39 (0)6 1234 5678", "+390612345678"},
		{"", "+(39) (0)6 1234 5678", "+390612345678"},
		{"", "00 39 (0)6 1234 5678", "00390612345678"},
		{"", "+(44) (0)20 7946 0018", "+442079460018"},
		{"", "(0)20 7946 0018", "02079460018"},
		{"", "110", "110"},
		{"", "10086", "10086"},
		{"", "1069012345678901234", "1069012345678901234"},
		{"", "+6834000", "+6834000"},
		{"", "+123456789012345", "+123456789012345"},

		{"86", "13800138000", "+8613800138000"},
		{"86", "138-0013-8000", "+8613800138000"},
		{"86", "+86 138 0013 8000", "+8613800138000"},
		{"86", "0086 138 0013 8000", "+8613800138000"},
		{"86", "8613800138000", "+8613800138000"},
		{"86", "010-1234 5678", "+861012345678"},
		{"86", "+1 (415) 555-2671", "+14155552671"},
		{"86", "001 415 555 2671", "+14155552671"},
		{"86", "10086", "10086"},
		{"86", "1008611", "1008611"},
		{"86", "95588", "95588"},
		{"86", "95588123", "95588123"},
		{"86", "106901234567", "106901234567"},
		{"86", "12345678901", "12345678901"},
		{"86", "010", "010"},

		{"1", "(415) 555-2671", "+14155552671"},
		{"1", "1-415-555-2671", "+14155552671"},
		{"1", "262966", "262966"},
		{"1", "555-2671", "5552671"},
		{"7", "8 (912) 345-67-89", "+79123456789"},
		{"7", "79123456789", "+79123456789"},
		{"7", "800 555 35 35", "+78005553535"},
		{"7", "900", "900"},
		{"44", "020 7946 0018", "+442079460018"},
		{"44", "60300", "60300"},
		{"39", "06 1234 5678", "+390612345678"},
		{"39", "333 1234567", "+393331234567"},
		{"36", "06 30 123 4567", "+36301234567"},
		{"375", "8 029 123 45 67", "+375291234567"},
		{"225", "07 12 34 56 78", "+2250712345678"},
		{"49", "1234567890123456", "1234567890123456"}, // too long for E.164
	} {
		number, problem := c.country.Phone(c.text)
		require.Empty(t, problem, "%q in %q", c.text, c.country)
		require.Equal(t, c.want, number, "%q in %q", c.text, c.country)
	}
}

func TestPhoneErrors(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                      "is required",
		"x":                     "must not contain 'x' here",
		"1380013800a":           "must not contain 'a' here",
		"138+0013":              "must not contain '+' here",
		"++8613800138000":       "must not contain '+' here",
		"１３８００１３８０００":           "must not contain '１' here",
		"1380013\x00":           `must not contain '\x00' here`,
		"110\n":                 `must not contain '\n' here`,
		"+86138001380\u202d00":  `must not contain '\u202d' here`,
		"+":                     "has 0 digits after +",
		"()":                    "has 0 digits",
		"12":                    "has 2 digits",
		"+12345":                "has 5 digits after +",
		"+1234567890123456":     "has 16 digits after +",
		"12345678901234567890":  "has 20 digits",
		"00000":                 "has 3 digits after 00",
		"0000000000000":         "has a country code that begins with 0",
		"+0013800138000":        "has a country code that begins with 0",
		"000":                   "has 1 digits after 00",
		strings.Repeat(" ", 51): "has more than 50 characters",
	} {
		number, problem := Country("86").Phone(text)
		require.Empty(t, number, "%q", text)
		require.Equal(t, want+"; it "+phoneRule, problem, "%q", text)
	}
}

func TestSpellings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		country Country
		number  string
		want    []string
	}{
		{"", "13800138000", []string{"13800138000"}},
		{"", "+8613800138000", []string{"+8613800138000"}},
		{"86", "+8613800138000", []string{"+8613800138000", "008613800138000", "13800138000", "013800138000", "8613800138000"}},
		{"86", "+861012345678", []string{"+861012345678", "00861012345678", "01012345678"}},
		{"86", "+14155552671", []string{"+14155552671", "0014155552671"}},
		{"86", "10086", []string{"10086"}},
		{"1", "+14155552671", []string{"+14155552671", "0014155552671", "4155552671", "14155552671"}},
		{"44", "+442079460018", []string{"+442079460018", "00442079460018", "2079460018", "02079460018"}},
		{"39", "+390612345678", []string{"+390612345678", "00390612345678", "0612345678"}},
	} {
		require.Equal(t, c.want, c.country.Spellings(c.number), "%s in %q", c.number, c.country)
	}
}

func TestCountryValid(t *testing.T) {
	t.Parallel()
	for _, c := range []Country{"", "1", "86", "375"} {
		require.True(t, c.Valid(), "%q", c)
	}
	for _, c := range []Country{"0", "086", "+86", "1234", "cn", "８６", " "} {
		require.False(t, c.Valid(), "%q", c)
	}
}

func TestPhoneSpellingsAreOneNumber(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for _, country := range []Country{"", "1", "7", "36", "39", "44", "86", "298", "375"} {
		starts := []string{"", "+", "00", "0", string(country), "+" + string(country), "00" + string(country), country.trunk(), "1", "+44 (0)"}
		for range 2000 {
			text := starts[random.IntN(len(starts))]
			for range 2 + random.IntN(14) {
				text += string("0123456789 -"[random.IntN(12)])
			}
			checkPhone(t, country, text)
		}
	}
}

func FuzzPhone(f *testing.F) {
	for _, text := range []string{"+86 138 0013 8000", "0086 13800138000", "13800138000", "+44 (0)20 7946 0018", "12", "110\n", "00000", "8 (912) 345-67-89"} {
		f.Add(text, "86")
		f.Add(text, "7")
		f.Add(text, "")
	}
	f.Fuzz(func(t *testing.T, text, country string) {
		if Country(country).Valid() {
			checkPhone(t, Country(country), text)
		}
	})
}

var storedPhone = regexp.MustCompile(`^(\+[1-9][0-9]{6,14}|[0-9]{3,19})$`)

// checkPhone checks the rules that apply to any text.
func checkPhone(t *testing.T, country Country, text string) {
	number, problem := country.Phone(text)
	plain, plainProblem := Country("").Phone(text)
	require.Equal(t, problem, plainProblem, "what is a number does not depend on the country: %q in %q", text, country)
	if problem != "" {
		require.Empty(t, number)
		return
	}
	require.Regexp(t, storedPhone, number)
	require.Regexp(t, storedPhone, plain)
	again, problem := country.Phone(number)
	require.Empty(t, problem)
	require.Equal(t, number, again, "a stored number stays as it is: %q in %q", text, country)
	fromPlain, _ := country.Phone(plain)
	require.Equal(t, number, fromPlain, "what was stored without a country is the same number: %q in %q", text, country)
	spellings := country.Spellings(number)
	require.Contains(t, spellings, plain, "Spellings has what was stored without a country: %q in %q", text, country)
	for _, other := range spellings {
		converted, problem := country.Phone(other)
		require.Empty(t, problem)
		require.Equal(t, number, converted)
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
