package main

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/task"
)

var errEnding = errors.New("the run is ending")

// respondBusy responds with 503 to a call that reached no process because of err. name is that of the function; it is not
// used if err is errEnding.
func respondBusy(w http.ResponseWriter, name string, err error) {
	message := "the function " + name + " did not start"
	if errors.Is(err, errEnding) {
		message = "this instance is ending"
	}
	w.Header().Set("Retry-After", "1")
	respondError(w, http.StatusServiceUnavailable, task.CodeServerBusy, message)
}

// respondError responds with an error to a call that is not forwarded to a process.
func respondError(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	// The caller may have closed the connection.
	_ = json.NewEncoder(w).Encode(api.Envelope{Code: status, Message: message, Error: code})
}
