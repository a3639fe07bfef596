package config

import (
	"cmp"
	"fmt"
	"math/bits"
	"regexp"
	"slices"
	"strings"

	"github.com/sendonce/sendonce/shared/task"
)

// prefixes are the beginnings of names that only Sendonce uses. APP_ is not among them: many programs use APP_ENV
// and APP_NAME.
var prefixes = []string{"SENDONCE_", "BASIC_AUTH_", "TWO_PHASE_", "WECHAT_"}

// serviceLink matches a variable that Kubernetes or a container link sets to describe a service. Its name may begin with
// one of prefixes.
var serviceLink = regexp.MustCompile(`_SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)=|_PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=|_PORT=(tcp|udp|sctp)://`)

// Unknown returns the variables that seem to be misspelt settings, so that a process does not start with a default in
// place of the intended value. These are variables that are no setting and whose name begins with one of prefixes, or
// is similar to the name of a setting that is not set. To use a similar name (without such a prefix) for something else,
// set the setting too.
func Unknown(environ []string, settings []Setting) []task.Field {
	set := map[string]bool{}
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		set[name] = true
	}
	known := map[string]bool{"SENDONCE_HOME": true} // where `make run` keeps its data
	var unset []string
	for _, s := range settings {
		names := []string{s.Name}
		if s.Secret {
			names = append(names, s.Name+fileSuffix)
		}
		for _, name := range names {
			known[name] = true
		}
		if !slices.ContainsFunc(names, func(name string) bool { return set[name] }) {
			unset = append(unset, names...)
		}
	}
	var problems []task.Field
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		if known[name] {
			continue
		}
		similar := nearest(name, unset)
		isOurs := slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		switch {
		case similar == "" && !isOurs || serviceLink.MatchString(pair):
		case similar != "":
			problems = append(problems, task.Field{Name: name, Message: fmt.Sprintf("is no setting; rename it to %s, or set %s too to keep it; `sendonce config` lists them all", similar, similar)})
		default:
			problems = append(problems, task.Field{Name: name, Message: "is no setting; `sendonce config` lists them all"})
		}
	}
	slices.SortFunc(problems, func(a, b task.Field) int { return cmp.Compare(a.Name, b.Name) })
	return problems
}

// nearest returns the candidate that is most similar to name; "" if none is similar. The distance of a similar candidate is
// at most one for every five of its characters, and at most three. A candidate that is not longer than NATS_URL must also have the same
// part before its first underscore, because other programs use names such as API_HOST. So no name is similar to PORT or DEBUG.
func nearest(name string, candidates []string) string {
	best, bestDistance := "", 4
	for _, candidate := range candidates {
		limit := min(len(candidate)/5, bestDistance-1)
		if !mayBeNear(name, candidate, limit) {
			continue
		}
		start, _, hasUnderscore := strings.Cut(candidate, "_")
		if len(candidate) <= len("NATS_URL") && !(hasUnderscore && strings.HasPrefix(name, start+"_")) {
			continue
		}
		if d := distance(name, candidate); d <= limit {
			best, bestDistance = candidate, d
		}
	}
	return best
}

// mayBeNear is a cheap test that excludes most names whose distance is over the limit. The distance is at least the
// difference of the lengths, and at least the number of different characters that a has and b lacks, or the reverse.
func mayBeNear(a, b string, limit int) bool {
	inA, inB := characters(a), characters(b)
	return max(len(a)-len(b), len(b)-len(a), bits.OnesCount64(inA&^inB), bits.OnesCount64(inB&^inA)) <= limit
}

// characters returns the set of the characters of a name, as bits. Some characters share a bit.
func characters(name string) (set uint64) {
	for i := range len(name) {
		set |= 1 << (name[i] % 64)
	}
	return set
}

// distance is the restricted Damerau-Levenshtein distance: how many characters must be changed, added, removed
// or swapped with their neighbour to turn a into b. Libraries for the Levenshtein distance count a swap as two.
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
