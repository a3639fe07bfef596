package telemetry

import (
	"runtime/metrics"

	own "github.com/sendonce/sendonce/shared/metrics"
)

// showRuntime adds what the Go runtime measures of this process.
func showRuntime(s *own.Scrape) {
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}, {Name: "/memory/classes/heap/objects:bytes"}, {Name: "/sched/goroutines:goroutines"}}
	metrics.Read(samples)
	s.Counter("go_heap_allocations_total", "Objects that were allocated on the heap.", float64(samples[0].Value.Uint64()))
	s.Gauge("go_heap_bytes", "Bytes of the objects on the heap, unreachable ones included until the next collection.", float64(samples[1].Value.Uint64()))
	s.Gauge("go_goroutines", "Goroutines that exist.", float64(samples[2].Value.Uint64()))
}
