package console

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/task"
)

func TestResultText(t *testing.T) {
	t.Parallel()
	for result, want := range map[string]string{
		task.ResultCancelled: "cancelled", task.ResultExhaustedPrefix + "no signal": "no retry left: no signal",
		task.ResultExhaustedPrefix + task.SendFailedMessage: "no retry left: the message could not be sent", "": "", "sent by hand": "sent by hand",
	} {
		require.Equal(t, want, resultText("en", result))
		require.Equal(t, result, resultText("zh", result))
	}
}

// englishResults has every Chinese text that package task writes as a result.
func TestEveryResultHasAnEnglishText(t *testing.T) {
	t.Parallel()
	found := 0
	for _, file := range []string{"task.go", "subscribe.go"} {
		parsed, err := parser.ParseFile(token.NewFileSet(), "../../shared/task/"+file, nil, 0)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(literal.Value)
			require.NoError(t, err)
			if strings.ContainsFunc(text, func(r rune) bool { return r >= 0x4e00 && r <= 0x9fff }) {
				found++
				require.NotEqual(t, text, resultText("en", text))
			}
			return true
		})
	}
	require.GreaterOrEqual(t, found, 7)
}
