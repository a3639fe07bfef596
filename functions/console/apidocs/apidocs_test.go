package apidocs

import (
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// countingReader counts the concurrent reads of all countingReaders.
type countingReader struct {
	now, most *atomic.Int32 // shared
	left      int           // reads until the end
}

func (r *countingReader) Read(p []byte) (int, error) {
	if n := r.now.Add(1); n > r.most.Load() {
		r.most.Store(n)
	}
	defer r.now.Add(-1)
	for range 10 {
		runtime.Gosched()
	}
	if r.left--; r.left < 0 {
		return 0, io.EOF
	}
	return len(p), nil
}

func TestOnePartIsDecompressedAtATime(t *testing.T) {
	t.Parallel()
	var now, most atomic.Int32
	var readers sync.WaitGroup
	for range 20 {
		readers.Go(func() { _, _ = io.Copy(io.Discard, serialReader{&countingReader{&now, &most, 20}}) })
	}
	readers.Wait()
	require.EqualValues(t, 1, most.Load())
}

// stuckWriter is a client that reads nothing until release is closed.
type stuckWriter struct {
	http.ResponseWriter
	writing chan<- struct{}
	release <-chan struct{}
}

func (w stuckWriter) Write(b []byte) (int, error) {
	w.writing <- struct{}{}
	<-w.release
	return w.ResponseWriter.Write(b)
}

func TestClientThatReadsNothingDoesNotDelayOthers(t *testing.T) {
	t.Parallel()
	f := compress([]byte(strings.Repeat("x", 1000)))
	request := httptest.NewRequest(http.MethodGet, "/", nil)
	writing, release := make(chan struct{}), make(chan struct{})
	var stuck sync.WaitGroup
	stuck.Go(func() { f.serve(stuckWriter{httptest.NewRecorder(), writing, release}, request) })
	<-writing
	other := httptest.NewRecorder()
	f.serve(other, request)
	require.Equal(t, 1000, other.Body.Len())
	close(release)
	stuck.Wait()
}
