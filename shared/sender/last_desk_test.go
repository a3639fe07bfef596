package sender

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/sendonce/sendonce/shared/api"
)

// newLastDesk is a service with one task, which tells what is reported of it.
func newLastDesk(t *testing.T, reported chan<- []api.ReportRequest) *api.Client {
	t.Helper()
	var once sync.Once
	answer := func(w http.ResponseWriter, data any) {
		if err := json.NewEncoder(w).Encode(api.Envelope{Code: http.StatusOK, Data: data}); err != nil {
			t.Error(err)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/v1/sms/tasks/pending", func(w http.ResponseWriter, _ *http.Request) {
		tasks := []api.ClaimedTask{}
		once.Do(func() { tasks = append(tasks, api.ClaimedTask{TaskID: "a", ClaimID: 1}) })
		answer(w, tasks)
	})
	mux.HandleFunc("POST /api/v1/sms/tasks/{id}/extend", func(w http.ResponseWriter, _ *http.Request) { answer(w, api.ExtendResponse{}) })
	mux.HandleFunc("POST /api/v1/sms/report/batch", func(w http.ResponseWriter, r *http.Request) {
		var batch api.ReportBatchRequest
		if err := json.NewDecoder(r.Body).Decode(&batch); err != nil {
			t.Error(err)
		}
		reports, items := make([]api.ReportRequest, len(batch.Items)), make([]api.BatchItem, len(batch.Items))
		for i, raw := range batch.Items {
			items[i].Code = http.StatusOK
			if err := json.Unmarshal(raw, &reports[i]); err != nil {
				t.Error(err)
			}
		}
		reported <- reports
		answer(w, api.BatchResponse{Items: items})
	})
	door := httptest.NewServer(mux)
	t.Cleanup(door.Close)
	return api.NewClient(door.URL, "u", "p")
}
