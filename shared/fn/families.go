package fn

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	metricPrefix = "sendonce_"

	gauge     = "gauge"
	counter   = "counter"
	histogram = "histogram"
	summary   = "summary"
)

// page is what one scrape shows: families by name.
type page map[string]*family

type family struct {
	kind, help string
	told       []string // samples that belong together
}

func (p page) add(kind string, d described, samples string) {
	if p[d.name] == nil {
		p[d.name] = &family{kind: kind, help: d.help}
	}
	p[d.name].told = append(p[d.name].told, samples)
}

// tell shows a single value.
func (p page) tell(kind, name, help string, value float64, of labels) {
	p.add(kind, described{name, help}, fmt.Sprintf("%s%s%s %v\n", metricPrefix, name, of, value))
}

// text is the page in Prometheus's text format 0.0.4.
func (p page) text() []byte {
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(p)) {
		f := p[name]
		slices.Sort(f.told)
		fmt.Fprintf(&b, "# HELP %[1]s%[2]s %[3]s\n# TYPE %[1]s%[2]s %[4]s\n%[5]s", metricPrefix, name, f.help, f.kind, strings.Join(f.told, ""))
	}
	return b.Bytes()
}

// labels are names with values, shown in the order of the names.
type labels map[string]string

var escaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func (l labels) String() string { return l.and() }

func (l labels) and(more ...string) string {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(l)) {
		pairs = append(pairs, name+`="`+escaper.Replace(l[name])+`"`)
	}
	if pairs = append(pairs, more...); len(pairs) == 0 {
		return ""
	}
	return "{" + strings.Join(pairs, ",") + "}"
}

// buckets go from 0.1 ms, a look-up in the stream, to 10 s, the deadline of
// most routes. They are given in units of which a second has perSecond.
func buckets(perSecond float64) []float64 {
	milliseconds := []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000}
	for i := range milliseconds {
		milliseconds[i] *= perSecond / 1000
	}
	return milliseconds
}

// outcomes counts and times what ends with a status, by function and by one
// label more.
type outcomes struct {
	by             string // the other label's name
	total, seconds described

	mu      sync.RWMutex
	tallies map[outcome]tally
	timings map[outcome]*distribution // by outcomes without a status
}

type described struct{ name, help string }

type outcome struct {
	function, by string
	status       int // 0: there was no answer
}

type tally struct {
	total   *Counter
	seconds *distribution // of all statuses
}

func newOutcomes(by string, total, seconds described) *outcomes {
	return &outcomes{by: by, total: total, seconds: seconds, tallies: map[outcome]tally{}, timings: map[outcome]*distribution{}}
}

func (o *outcomes) add(one outcome, took time.Duration) {
	o.mu.RLock()
	t, known := o.tallies[one]
	o.mu.RUnlock()
	if !known {
		t = o.begin(one)
	}
	t.total.Inc()
	t.seconds.observe(took.Seconds())
}

func (o *outcomes) begin(one outcome) tally {
	o.mu.Lock()
	defer o.mu.Unlock()
	every := outcome{function: one.function, by: one.by}
	if o.timings[every] == nil {
		o.timings[every] = newDistribution(buckets(1))
	}
	if _, known := o.tallies[one]; !known {
		o.tallies[one] = tally{new(Counter), o.timings[every]}
	}
	return o.tallies[one]
}

func (o *outcomes) tell(p page) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	for one, t := range o.tallies {
		status := "none"
		if one.status != 0 {
			status = strconv.Itoa(one.status)
		}
		p.tell(counter, o.total.name, o.total.help, float64(t.total.n.Load()), labels{"function": one.function, o.by: one.by, "status": status})
	}
	for one, d := range o.timings {
		d.tell(p, o.seconds, labels{"function": one.function, o.by: one.by})
	}
}
