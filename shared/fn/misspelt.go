package fn

import (
	"cmp"
	"fmt"
	"math/bits"
	"regexp"
	"slices"
	"strings"
)

// ours begin the names that nobody else has a reason to use. APP_ does not: APP_ENV
// and APP_NAME are set by many.
var ours = []string{"SENDONCE_", "BASIC_AUTH_", "TWO_PHASE_", "WECHAT_"}

// isOfService tells the variables by which Kubernetes and container links speak
// of a service, whatever its name is.
func isOfService(pair string) bool {
	const pattern = `_SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)=|_PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=|_PORT=(tcp|udp|sctp)://`
	return regexp.MustCompile(pattern).MatchString(pair) // few ask, and most starts do not
}

// unknownSettings names the variables that look like ours and are not: a
// misspelt setting must not silently leave its default in force. Those are the
// ones that begin as only ours do, and the ones that are nearly a setting which
// is not set: whoever means something else by one sets that, too.
func unknownSettings(environ []string, words []Word, functions []Function) []problem {
	set := map[string]bool{}
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		set[name] = true
	}
	known := map[string]bool{"SENDONCE_HOME": true} // where `make run` keeps its data
	var unset []string
	for _, s := range settings(words, functions) {
		names := []string{s.name}
		if s.secret {
			names = append(names, s.name+fileSuffix)
		}
		for _, name := range names {
			known[name] = true
		}
		if !slices.ContainsFunc(names, func(name string) bool { return set[name] }) {
			unset = append(unset, names...)
		}
	}
	var problems []problem
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		if known[name] {
			continue
		}
		meant := nearest(name, unset)
		isOurs := slices.ContainsFunc(ours, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		switch {
		case meant == "" && !isOurs || isOfService(pair):
		case meant != "":
			problems = append(problems, problem{name, fmt.Sprintf("is no setting; if %s is meant, rename it, else set %s too; `sendonce config` lists them all", meant, meant)})
		default:
			problems = append(problems, problem{name, "is no setting; `sendonce config` lists them all"})
		}
	}
	slices.SortFunc(problems, func(a, b problem) int { return cmp.Compare(a.name, b.name) })
	return problems
}

// nearest is the name of which another is most likely a misspelling, "" when
// there is none. One letter in five may be wrong, and three at most; of PORT none,
// and of NATS_URL not the beginning: others have short names too, as API_HOST.
func nearest(name string, names []string) string {
	best, least := "", 4
	for _, candidate := range names {
		may := min(len(candidate)/5, least-1)
		if !mayBe(name, candidate, may) {
			continue
		}
		first, _, parted := strings.Cut(candidate, "_")
		if len(candidate) <= len("NATS_URL") && !(parted && strings.HasPrefix(name, first+"_")) {
			continue
		}
		if d := distance(name, candidate); d <= may {
			best, least = candidate, d
		}
	}
	return best
}

// mayBe spares most names the look at their distance, which is at least the
// difference of their lengths and as much as one has letters that the other lacks.
func mayBe(a, b string, distance int) bool {
	has, lacks := letters(a), letters(b)
	return max(len(a)-len(b), len(b)-len(a), bits.OnesCount64(has&^lacks), bits.OnesCount64(lacks&^has)) <= distance
}

func letters(name string) (set uint64) {
	for i := range len(name) {
		set |= 1 << (name[i] % 64)
	}
	return set
}

// distance is how many letters must be changed, added, left out or swapped with
// their neighbour to make b of a.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			rows[i][j] = min(change, rows[i-1][j]+1, rows[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
