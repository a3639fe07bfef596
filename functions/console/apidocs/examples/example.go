// Calls Sendonce with its Go client. SENDONCE_URL, SENDONCE_USER and SENDONCE_PASSWORD name the server and the caller.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/sendonce/sendonce/shared/api"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	// --- setup
	// import "github.com/sendonce/sendonce/shared/api"
	user := os.Getenv("SENDONCE_USER")
	client := api.NewClient(os.Getenv("SENDONCE_URL"), user, os.Getenv("SENDONCE_PASSWORD"))

	// --- send
	order := api.NewKey() // the id of your order, which this SMS is about
	task, err := client.Send(ctx, api.SendRequest{
		PhoneNumber: "13800138000", Content: "Your code is 123456", Queue: "example-go", IdempotencyKey: order,
	}) // the client repeats a call without a response; the key prevents a second task
	if err != nil {
		return err
	}
	fmt.Println("submitted", task.TaskID)

	// --- by-key
	found, err := client.TaskByKey(ctx, order)
	if err != nil {
		return err
	}
	fmt.Println("found", found.TaskID, found.State)

	// --- claim
	claimed, err := client.Claim(ctx, api.ClaimRequest{AppID: "example-go", Queue: "example-go", Limit: new(10), Wait: new(5)})
	if err != nil {
		return err
	}
	fmt.Println("claimed", len(claimed))

	// --- report
	for _, task := range claimed {
		// Send task.Content to task.PhoneNumber here. After a failure: Status 3 and ShouldRetry.
		report := api.ReportRequest{TaskID: task.TaskID, AppID: "example-go", ClaimID: task.ClaimID, Status: new(2)}
		done, err := client.Report(ctx, report)
		if err != nil {
			return err
		}
		fmt.Println("reported", done.State)
	}

	// --- endpoint
	endpoint, err := client.AddEndpoint(ctx, api.EndpointRequest{
		URL: "https://shop.example.com/sendonce", Events: []string{"task.succeeded", "task.failed"},
	})
	if err != nil {
		return err
	}
	fmt.Println("registered", endpoint.ID) // keep endpoint.Secret: it is shown once and verifies the webhooks

	// --- verify
	receive := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil || api.VerifyWebhook(r.Header, body, time.Now(), endpoint.Secret) != nil {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Println("handle once:", r.Header.Get("webhook-id"))
		w.WriteHeader(http.StatusNoContent)
	}

	// --- message
	ack, err := client.SubmitMessage(ctx, api.MessageRequest{
		ClientMsgID: order, To: "user:" + user, Type: "text", Data: json.RawMessage(`{"text": "hello"}`),
	}) // the same call again, with this ClientMsgID, creates no second message
	if err != nil {
		return err
	}
	fmt.Println("message", ack.ServerMsgID, ack.Ack)

	// --- stream
	for event, err := range client.Stream(ctx, user, api.StreamRequest{After: new(int64(0))}) {
		if err != nil {
			return err
		}
		fmt.Println("received", event.ID, event.Kind, string(event.Data))
		if event.Kind == "message" {
			break // without break the stream goes on: the client reconnects by itself
		}
	}

	// --- end
	http.HandleFunc("POST /sendonce", receive)
	return client.DeleteEndpoint(ctx, endpoint.ID)
}
