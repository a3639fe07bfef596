package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/api"
)

// story takes a task and a message through every function. Another name makes other
// keys on the same data.
func story(ctx context.Context, c *api.Client, name string) error {
	return errors.Join(taskStory(ctx, c, name), messageStory(ctx, c, name), checkClosed(ctx, c.BaseURL))
}

func taskStory(ctx context.Context, c *api.Client, name string) error {
	// It becomes pending by a schedule of NATS, the trigger and sweep.
	soon := time.Now().Add(2 * time.Second)
	request := api.SendRequest{PhoneNumber: "13800138000", Content: "您的验证码是123456", IdempotencyKey: "story-" + name, SendAt: &soon}
	sent, err := c.Send(ctx, request)
	if err != nil {
		return fmt.Errorf("submit: %w", err)
	}
	again, err := c.Send(ctx, request)
	if err != nil || again.TaskID != sent.TaskID {
		return fmt.Errorf("the replay is %q, not %s (%v)", again.TaskID, sent.TaskID, err)
	}
	err = until(ctx, waitLimit, func(ctx context.Context) error {
		task, err := c.Task(ctx, sent.TaskID)
		if err == nil && task.State != "pending" {
			err = fmt.Errorf("the task is %s, not pending", task.State)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("sweep did not make the task pending: %w", err)
	}
	claimed, err := c.Claim(ctx, api.ClaimRequest{AppID: "phone", Limit: new(10), Wait: new(5)})
	if err != nil || len(claimed) != 1 || claimed[0].TaskID != sent.TaskID {
		return fmt.Errorf("claimed %v, not the task (%v)", claimed, err)
	}
	if _, err := c.Report(ctx, api.ReportRequest{TaskID: sent.TaskID, AppID: "phone", ClaimID: claimed[0].ClaimID, Status: new(2)}); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	task, err := c.Task(ctx, sent.TaskID)
	if err == nil && task.State != "succeeded" {
		err = fmt.Errorf("the task is %s", task.State)
	}
	return err
}

// messageStory needs messages, relay, NATS and stream.
func messageStory(ctx context.Context, c *api.Client, name string) error {
	if _, err := c.SubmitMessage(ctx, api.MessageRequest{From: "ann", ClientMsgID: name, To: "user:bob-" + name, Type: "text", Data: api.JSON(`"你好"`)}); err != nil {
		return fmt.Errorf("submit a message: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	for event, err := range c.Stream(ctx, "bob-"+name, api.StreamRequest{After: new(int64(0))}) {
		if err != nil {
			return fmt.Errorf("the stream of bob: %w", err)
		}
		if strings.Contains(string(event.Data), "你好") {
			return socketStory(ctx, c, "bob-"+name)
		}
	}
	return errors.New("bob received no message")
}

// socketStory sends a message from a user to itself over a WebSocket.
func socketStory(ctx context.Context, c *api.Client, user string) error {
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
			return fmt.Errorf("the socket refused a message: %s", f.Data)
		case f.Event == api.StreamAck && f.ID == nil:
			acked = true
		case strings.Contains(string(f.Data), "再见"):
			received = true
		}
	}
	return nil
}

// checkClosed checks that the gateway blocks what is not for the outside.
func checkClosed(ctx context.Context, url string) error {
	for _, path := range []string{"/metrics", "/events/sweep"} {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+path, nil)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		var answer api.Envelope
		err = json.NewDecoder(res.Body).Decode(&answer)
		res.Body.Close()
		if err != nil || res.StatusCode != http.StatusNotFound || answer.Error != "not_found" {
			return fmt.Errorf("%s is answered %d %v (%v)", path, res.StatusCode, answer, err)
		}
	}
	return nil
}
