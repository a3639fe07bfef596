package fn

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// These are our own because every start of a function would pay for a library:
// Prometheus's client takes a millisecond before main is reached, and
// VictoriaMetrics' reads cgroups there and writes a line of its own to stderr.

// Counter counts up.
type Counter struct{ n atomic.Uint64 }

// Inc counts one.
func (c *Counter) Inc() { c.n.Add(1) }

// CounterBy counts up by the values of one label, which are few.
type CounterBy struct {
	label  string
	mu     sync.Mutex
	counts map[string]uint64
}

// Add counts n under a value of the label.
func (c *CounterBy) Add(value string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[value] += uint64(n)
}

func (c *CounterBy) tell(p page, name, help string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for value, n := range c.counts {
		p.tell(counter, name, help, float64(n), labels{c.label: value})
	}
}

// distribution is a histogram of fixed buckets.
type distribution struct {
	bounds []float64

	mu  sync.Mutex
	in  []uint64 // by bucket, the last above all bounds
	sum float64
}

func newDistribution(bounds []float64) *distribution {
	return &distribution{bounds: bounds, in: make([]uint64, len(bounds)+1)}
}

func (d *distribution) observe(v float64) {
	i, _ := slices.BinarySearch(d.bounds, v)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.in[i]++
	d.sum += v
}

func (d *distribution) tell(p page, as described, of labels) {
	d.mu.Lock()
	in, sum := slices.Clone(d.in), d.sum
	d.mu.Unlock()
	var b strings.Builder
	var n uint64
	for i, more := range in {
		bound := "+Inf"
		if i < len(d.bounds) {
			bound = fmt.Sprint(d.bounds[i])
		}
		n += more
		fmt.Fprintf(&b, "%s%s_bucket%s %d\n", metricPrefix, as.name, of.and(`le="`+bound+`"`), n)
	}
	fmt.Fprintf(&b, "%[1]s%[2]s_sum%[3]s %[4]v\n%[1]s%[2]s_count%[3]s %[5]d\n", metricPrefix, as.name, of, sum, n)
	p.add(histogram, as, b.String())
}

// recent is a summary of the last window, or of half of it at least. Values from 0
// on are kept in steps of 2 %, so quantiles are off by 1 % at most.
type recent struct {
	window time.Duration

	mu     sync.Mutex
	begun  time.Time      // of now
	now    map[int]uint64 // by step
	before map[int]uint64
	n      uint64 // since ever, as is sum
	sum    float64
}

const lagStep = 1.02

func newRecent(window time.Duration) *recent {
	return &recent{window: window, begun: time.Now(), now: map[int]uint64{}}
}

func (r *recent) observe(v float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn()
	r.now[int(math.Ceil(math.Log(max(v, 1e-3))/math.Log(lagStep)))]++
	r.n++
	r.sum += v
}

// turn forgets what is too old.
func (r *recent) turn() {
	for half := r.window / 2; time.Since(r.begun) >= half; r.begun = r.begun.Add(half) {
		if len(r.now)+len(r.before) == 0 {
			r.begun = time.Now()
			return
		}
		r.before, r.now = r.now, map[int]uint64{}
	}
}

func (r *recent) tell(p page, as described) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn()
	all, total := maps.Clone(r.now), uint64(0)
	for s, n := range r.before {
		all[s] += n
	}
	for _, n := range all {
		total += n
	}
	steps := slices.Sorted(maps.Keys(all))
	var b strings.Builder
	for _, q := range []float64{0.5, 0.9, 0.99} {
		value, seen := math.NaN(), uint64(0)
		for _, s := range steps {
			if seen += all[s]; float64(seen) >= q*float64(total) {
				value = math.Pow(lagStep, float64(s)-0.5)
				break
			}
		}
		fmt.Fprintf(&b, "%s%s{quantile=\"%v\"} %v\n", metricPrefix, as.name, q, value)
	}
	fmt.Fprintf(&b, "%[1]s%[2]s_sum %[3]v\n%[1]s%[2]s_count %[4]d\n", metricPrefix, as.name, r.sum, r.n)
	p.add(summary, as, b.String())
}
