package sandbox

import (
	"fmt"
	"strings"
	"testing"
)

// RequireGolden ends the test unless file has the generated text. It shows the lines
// that differ, and the command that writes the file anew.
func RequireGolden(t testing.TB, file, has, generated, command string) {
	t.Helper()
	if has != generated {
		t.Fatalf("%s is not what is generated (- the file, + generated):\n%sIf the change is meant, run: %s", file, diff(has, generated), command)
	}
}

// diff returns the lines that only one of two texts has, - before those of a and +
// before those of b, each group under the number of its first line in a.
func diff(a, b string) string {
	x, y := strings.SplitAfter(a, "\n"), strings.SplitAfter(b, "\n")
	// common[i][j] is the number of lines that x[i:] and y[j:] have in common, in order.
	common := make([][]int32, len(x)+1)
	for i := range common {
		common[i] = make([]int32, len(y)+1)
	}
	for i := len(x) - 1; i >= 0; i-- {
		for j := len(y) - 1; j >= 0; j-- {
			if x[i] == y[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var out strings.Builder
	same := true
	write := func(sign, line string, number int) {
		if same {
			fmt.Fprintf(&out, "@@ line %d\n", number)
			same = false
		}
		out.WriteString(sign + strings.TrimSuffix(line, "\n") + "\n")
	}
	for i, j := 0, 0; i < len(x) || j < len(y); {
		switch {
		case i < len(x) && j < len(y) && x[i] == y[j]:
			i, j, same = i+1, j+1, true
		case i < len(x) && (j == len(y) || common[i+1][j] >= common[i][j+1]):
			write("-", x[i], i+1)
			i++
		default:
			write("+", y[j], i+1)
			j++
		}
	}
	return out.String()
}
