// Package metrics counts what a process does and writes it in Prometheus's text format
// (version 0.0.4).
//
// Prometheus's client library is not used: a function may be started for a single call, and
// importing that library costs 1.7 ms at each start, and 5.7 MB in the binary.
package metrics

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

const (
	prefix    = "sendonce_" // of the name of each metric
	maxLabels = 3           // of one Counter or Histogram
)

// Registry has the metrics of one path, such as /metrics; the zero value has none. A Registry, its Counters and its Histograms are
// safe for concurrent use.
type Registry struct {
	mu         sync.Mutex
	collectors []func(*Scrape)
}

// Collect registers a function that adds the current values to each scrape.
func (r *Registry) Collect(collect func(*Scrape)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.collectors = append(r.collectors, collect)
}

// Text returns all metrics, sorted by name and labels.
func (r *Registry) Text() []byte {
	r.mu.Lock()
	collectors := slices.Clone(r.collectors)
	r.mu.Unlock()
	s := Scrape{families: map[string]*family{}}
	for _, collect := range collectors {
		collect(&s)
	}
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(s.families)) {
		f := s.families[name]
		slices.Sort(f.samples)
		fmt.Fprintf(&b, "# HELP %[1]s %[2]s\n# TYPE %[1]s %[3]s\n%[4]s", name, f.help, f.kind, strings.Join(f.samples, ""))
	}
	return b.Bytes()
}

// Scrape has the metrics of one scrape. It is not safe for concurrent use.
type Scrape struct{ families map[string]*family }

// family has the samples of one name.
type family struct {
	kind, help string
	samples    []string
}

// Gauge adds a value that goes up and down. labels are names and values in turn.
func (s *Scrape) Gauge(name, help string, value float64, labels ...string) {
	s.sample("gauge", name, help, value, labels)
}

// Flag adds a gauge that is 1 while on is true, else 0. labels are names and values in turn.
func (s *Scrape) Flag(name, help string, on bool, labels ...string) {
	value := 0.0
	if on {
		value = 1
	}
	s.Gauge(name, help, value, labels...)
}

// Counter adds a value that only goes up. labels are names and values in turn.
func (s *Scrape) Counter(name, help string, value float64, labels ...string) {
	s.sample("counter", name, help, value, labels)
}

// Histogram adds a histogram. bounds are the upper bounds of the buckets. counts has the number of values in each
// bucket, and at the end the number of values above all bounds. labels are names and values in turn.
func (s *Scrape) Histogram(name, help string, bounds []float64, counts []uint64, sum float64, labels ...string) {
	s.add("histogram", name, help, histogramText(prefix+name, labels, bounds, counts, sum))
}

func (s *Scrape) sample(kind, name, help string, value float64, labels []string) {
	s.add(kind, name, help, fmt.Sprintf("%s%s%s %v\n", prefix, name, labelText(labels), value))
}

func (s *Scrape) add(kind, name, help, text string) {
	name = prefix + name
	if s.families[name] == nil {
		s.families[name] = &family{kind: kind, help: help}
	}
	s.families[name].samples = append(s.families[name].samples, text)
}

var escaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func labelText(labels []string) string {
	if len(labels) == 0 {
		return ""
	}
	var pairs []string
	for pair := range slices.Chunk(labels, 2) {
		pairs = append(pairs, pair[0]+`="`+escaper.Replace(pair[1])+`"`)
	}
	return "{" + strings.Join(pairs, ",") + "}"
}

// values are the label values of one series, in the order of the labels.
type values [maxLabels]string

func valuesOf(labelValues []string) (v values) {
	copy(v[:], labelValues)
	return v
}

// pairs returns each of names, followed by its value.
func (v values) pairs(names []string) (labels []string) {
	for i, name := range names {
		labels = append(labels, name, v[i])
	}
	return labels
}

// Counter counts events by the values of its labels.
type Counter struct {
	mu     sync.Mutex
	counts map[values]uint64
}

// Counter makes a counter with at most maxLabels labels. Each label must have few different values, because each
// combination is kept. A counter without labels is shown from the start, others from their first Inc.
func (r *Registry) Counter(name, help string, labels ...string) *Counter {
	c := &Counter{counts: map[values]uint64{}}
	if len(labels) == 0 {
		c.Add(0)
	}
	r.Collect(func(s *Scrape) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for v, n := range c.counts {
			s.Counter(name, help, float64(n), v.pairs(labels)...)
		}
	})
	return c
}

// Inc counts one event. labelValues has the value of each label, in the order of the labels.
func (c *Counter) Inc(labelValues ...string) { c.Add(1, labelValues...) }

// Add counts n, which must not be negative.
func (c *Counter) Add(n int, labelValues ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[valuesOf(labelValues)] += uint64(n)
}

// Histogram counts observed values by bucket, and by the values of its labels.
type Histogram struct {
	bounds []float64 // upper bounds of the buckets, inclusive; one more bucket has no bound

	mu      sync.Mutex
	buckets map[values]*buckets
}

type buckets struct {
	counts []uint64
	sum    float64
}

// Histogram makes a histogram. bounds are the upper bounds of its buckets, ascending. labels are as for Counter.
func (r *Registry) Histogram(name, help string, bounds []float64, labels ...string) *Histogram {
	h := &Histogram{bounds: bounds, buckets: map[values]*buckets{}}
	if len(labels) == 0 {
		h.series(nil)
	}
	r.Collect(func(s *Scrape) {
		h.mu.Lock()
		defer h.mu.Unlock()
		for v, b := range h.buckets {
			s.Histogram(name, help, h.bounds, b.counts, b.sum, v.pairs(labels)...)
		}
	})
	return h
}

// Observe counts one value. labelValues are as for Inc.
func (h *Histogram) Observe(value float64, labelValues ...string) {
	bucket, _ := slices.BinarySearch(h.bounds, value)
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.series(labelValues)
	b.counts[bucket]++
	b.sum += value
}

// series returns the buckets of the label values; mu is held.
func (h *Histogram) series(labelValues []string) *buckets {
	v := valuesOf(labelValues)
	if h.buckets[v] == nil {
		h.buckets[v] = &buckets{counts: make([]uint64, len(h.bounds)+1)}
	}
	return h.buckets[v]
}

func histogramText(name string, labels []string, bounds []float64, counts []uint64, sum float64) string {
	var b strings.Builder
	var total uint64
	for i, n := range counts {
		bound := "+Inf"
		if i < len(bounds) {
			bound = fmt.Sprint(bounds[i])
		}
		total += n
		fmt.Fprintf(&b, "%s_bucket%s %d\n", name, labelText(append(slices.Clip(labels), "le", bound)), total)
	}
	fmt.Fprintf(&b, "%[1]s_sum%[2]s %[3]v\n%[1]s_count%[2]s %[4]d\n", name, labelText(labels), sum, total)
	return b.String()
}
