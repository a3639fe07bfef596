package task

import (
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/require"
)

func TestSegments(t *testing.T) {
	t.Parallel()
	repeat := strings.Repeat
	for _, c := range []struct {
		name     string
		text     string
		count    int
		encoding Encoding
	}{
		{"empty text needs no message", "", 0, GSM7},
		{"160 septets fit one message", repeat("a", 160), 1, GSM7},
		{"161 septets need two", repeat("a", 161), 2, GSM7},
		{"two parts hold 306 septets", repeat("a", 306), 2, GSM7},
		{"307 septets need three", repeat("a", 307), 3, GSM7},
		{"80 euro signs fit one message", repeat("€", 80), 1, GSM7},
		{"81 euro signs need two", repeat("€", 81), 2, GSM7},
		{"160 euro signs need three: a part holds 76", repeat("€", 160), 3, GSM7},
		{"an extension pair that ends a part stays in it", repeat("a", 151) + "€" + repeat("a", 153), 2, GSM7},
		{"an extension pair is not split over two parts", repeat("a", 152) + "€" + repeat("a", 152), 3, GSM7},
		{"a pair over the edge of a part does not matter in a single message", repeat("a", 152) + "€" + repeat("a", 6), 1, GSM7},
		{"an accent outside the alphabet is UCS-2", repeat("ê", 71), 2, UCS2},
		{"a typographic quote makes the whole text UCS-2", repeat("a", 70) + "’", 2, UCS2},
		{"70 Chinese characters fit one message", repeat("验", 70), 1, UCS2},
		{"71 Chinese characters need two", repeat("验", 71), 2, UCS2},
		{"two parts hold 134 Chinese characters", repeat("验", 134), 2, UCS2},
		{"135 Chinese characters need three", repeat("验", 135), 3, UCS2},
		{"an extension character is one unit of UCS-2", repeat("€", 69) + "验", 1, UCS2},
		{"35 emoji fit one message", repeat("😀", 35), 1, UCS2},
		{"36 emoji need two", repeat("😀", 36), 2, UCS2},
		{"66 emoji fill two parts of 33", repeat("😀", 66), 2, UCS2},
		{"67 emoji need three", repeat("😀", 67), 3, UCS2},
		{"an emoji that ends a part stays in it", repeat("验", 65) + "😀" + repeat("验", 67), 2, UCS2},
		{"an emoji is not split over two parts", repeat("验", 66) + "😀" + repeat("验", 66), 3, UCS2},
		{"broken UTF-8 counts as the replacement character", repeat("\xff", 71), 2, UCS2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			count, encoding := Segments(c.text)
			require.Equal(t, c.count, count)
			require.Equal(t, c.encoding, encoding)
		})
	}
}

func TestGSMAlphabet(t *testing.T) {
	t.Parallel()
	// 3GPP TS 23.038 section 6.2.1, row by row, without the escape.
	const basic = "@£$¥èéùìòÇ\nØø\rÅå" + "Δ_ΦΓΛΩΠΨΣΘΞÆæßÉ" + ` !"#¤%&'()*+,-./` + "0123456789:;<=>?" +
		"¡ABCDEFGHIJKLMNO" + "PQRSTUVWXYZÄÖÑÜ§" + "¿abcdefghijklmno" + "pqrstuvwxyzäöñüà"
	const extension = "\f^{}\\[~]|€"
	width := make(map[rune]int)
	for _, r := range basic {
		width[r] = 1
	}
	for _, r := range extension {
		width[r] = 2
	}
	require.Len(t, width, 127+10)
	for r := range rune(0x10000) {
		require.False(t, septets(r) != width[r], "%U takes %d septets, not %d", r, width[r], septets(r))
	}
}

func FuzzSegments(f *testing.F) {
	f.Add(strings.Repeat("€", 160))
	f.Add(strings.Repeat("验", 135))
	f.Add(strings.Repeat("a", 66) + "😀")
	f.Add("\xff\xfe")
	f.Fuzz(func(t *testing.T, text string) {
		count, encoding := Segments(text)
		total, single, part := 0, singleSeptets, partSeptets
		if encoding == UCS2 {
			total, single, part = len(utf16.Encode([]rune(text))), singleUnits, partUnits
		} else {
			require.Equal(t, GSM7, encoding)
			for _, r := range text {
				require.Positive(t, septets(r))
				total += septets(r)
			}
		}
		switch {
		case total == 0:
			require.Zero(t, count)
		case total <= single:
			require.Equal(t, 1, count)
		default:
			require.GreaterOrEqual(t, count*part, total)
			// Each part but the last has at most one unused unit.
			require.Less(t, (count-1)*(part-1), total)
		}
	})
}
