package console

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCSVMarksFormulas(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"=1+1": "'=1+1", "+1": "'+1", "-1": "'-1", "@x": "'@x", "\t1": "'\t1", "\t=1": "'\t'=1", "\r=1": "'\r'=1", "\n=1": "'\n'=1", "\r\n=1": "'\r'\n'=1",
		"a\t\t=1": "a\t'\t'=1", ";\t=1": ";'\t'=1", "a;;=1": "a;;'=1", "==1": "'==1", "a=1;": "a=1;",
		"＝1+1": "'＝1+1", "＋1": "'＋1", "－1": "'－1", "＠x": "'＠x",
		";=1": ";'=1", "a;=1": "a;'=1", "a\t=1": "a\t'=1", "a;＝1": "a;'＝1",
		"": "", "138****8000": "138****8000", "2026-01-31T08:00:00+08:00": "2026-01-31T08:00:00+08:00", "a; b=1": "a; b=1",
	} {
		require.Equal(t, []string{want}, csvSafe(value))
	}
}

func TestCSVMarksFormulasInRandomTexts(t *testing.T) {
	t.Parallel()
	unmarked := regexp.MustCompile(`(^|[;\t\r\n])[=+\-@＝＋－＠\t\r\n]`)
	alphabet := []rune(";;\t\t\r\n==+-@＝＋－＠a1 ")
	for range 20_000 {
		value := make([]rune, rand.IntN(8))
		for i := range value {
			value[i] = alphabet[rand.IntN(len(alphabet))]
		}
		marked := csvSafe(string(value))[0]
		require.NotRegexp(t, unmarked, marked, "%q", string(value))
		require.Equal(t, string(value), strings.ReplaceAll(marked, "'", ""))
	}
}
