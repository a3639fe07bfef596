package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/sendonce/sendonce/shared/api"
)

// checkGateway checks what the calls of the type traffic do not cover: that a WebSocket works, and that the gateway blocks internal
// paths. Each profile uses another user, because the database is the same and a user's client_msg_id must not repeat.
func checkGateway(ctx context.Context, c *api.Client, profile string) error {
	return errors.Join(checkSocket(ctx, c, "bob-"+profile), checkBlocked(ctx, c.BaseURL))
}

// checkSocket sends a message from a user to itself over a WebSocket.
func checkSocket(ctx context.Context, c *api.Client, user string) error {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	socket, err := c.Socket(ctx, user, api.StreamRequest{})
	if err != nil {
		return fmt.Errorf("open a socket: %w", err)
	}
	defer socket.Close()
	if err := socket.Send(ctx, api.MessageRequest{ClientMsgID: "self", To: "user:" + user, Data: api.JSON(`"再见"`)}); err != nil {
		return fmt.Errorf("send over the socket: %w", err)
	}
	for acked, received := false, false; !acked || !received; {
		f, err := socket.Next(ctx)
		switch {
		case err != nil:
			return fmt.Errorf("the socket of %s: %w", user, err)
		case f.Event == api.SocketError:
			return fmt.Errorf("the socket rejected a message: %s", f.Data)
		case f.Event == api.StreamAck && f.ID == nil: // the response to Send, not an event of the stream
			acked = true
		case strings.Contains(string(f.Data), "再见"):
			received = true
		}
	}
	return nil
}

// checkBlocked checks that the gateway blocks internal paths.
func checkBlocked(ctx context.Context, url string) error {
	for _, path := range []string{"/metrics", "/events/sweep"} {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+path, nil)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		var response api.Envelope
		err = json.NewDecoder(res.Body).Decode(&response)
		res.Body.Close()
		if err != nil || res.StatusCode != http.StatusNotFound || response.Error != "not_found" {
			return fmt.Errorf("%s returned %d %v (%v)", path, res.StatusCode, response, err)
		}
	}
	return nil
}
