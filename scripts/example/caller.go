package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"github.com/sendonce/sendonce/shared/api"
)

// callersClient manages the callers of Sendonce as the built-in admin.
type callersClient struct{ url, user, password string }

// createReceiver creates a caller and returns the token of the caller. The caller has only the role receiver, and may
// confirm only messages to this NATS subject. If there is such a caller from an earlier demo, createReceiver replaces the
// token of that caller.
func (a callersClient) createReceiver(ctx context.Context, name, subject string) (string, error) {
	var caller api.CallerResponse
	status, err := a.call(ctx, http.MethodPost, "", api.CallerRequest{Name: name, Roles: []string{"receiver"}, Receives: []string{subject}}, &caller)
	if status == http.StatusConflict {
		var id api.ID
		if id, err = a.find(ctx, name); err == nil {
			_, err = a.call(ctx, http.MethodPost, fmt.Sprintf("/%d/rotate", id), nil, &caller)
		}
	}
	return caller.Token, err
}

func (a callersClient) find(ctx context.Context, name string) (api.ID, error) {
	var found api.CallerNamesResponse
	if _, err := a.call(ctx, http.MethodGet, "/names?name="+url.QueryEscape(name), nil, &found); err != nil {
		return 0, err
	}
	if len(found.Callers) == 0 {
		return 0, fmt.Errorf("there is no caller %s", name)
	}
	return found.Callers[0].ID, nil
}

// call makes one call and decodes the data of its response.
func (a callersClient) call(ctx context.Context, method, path string, body, data any) (status int, err error) {
	var raw []byte
	if body != nil {
		if raw, err = json.Marshal(body); err != nil {
			return 0, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, a.url+"/api/v1/admin/callers"+path, bytes.NewReader(raw))
	if err != nil {
		return 0, err
	}
	req.SetBasicAuth(a.user, a.password)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	response := api.Envelope{Data: data}
	if err := json.NewDecoder(res.Body).Decode(&response); err != nil {
		return res.StatusCode, fmt.Errorf("%s %s returned %s: %w", method, req.URL.Path, res.Status, err)
	}
	if res.StatusCode != http.StatusOK {
		return res.StatusCode, fmt.Errorf("%s %s returned %s: %s", method, req.URL.Path, res.Status, response.Message)
	}
	return res.StatusCode, nil
}
