// Command clients is a submitter, a sender app and a receiver of webhooks. It proves that openapi.yaml is sufficient: all
// its requests go through the client that oapi-codegen generates (see run.sh).
package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/sendonce/sendonce/scripts/clients/sendonce"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	addLogin := func(_ context.Context, r *http.Request) error {
		r.SetBasicAuth(os.Getenv("SENDONCE_USER"), os.Getenv("SENDONCE_PASSWORD"))
		return nil
	}
	client, err := sendonce.NewClientWithResponses(os.Getenv("SENDONCE_URL"), sendonce.WithRequestEditorFn(addLogin))
	if err != nil {
		return err
	}
	task, err := submit(ctx, client)
	if err != nil {
		return err
	}
	if err := claimAndReport(ctx, client, task); err != nil {
		return err
	}
	endpoint, err := client.AddEndpointWithResponse(ctx, nil, sendonce.EndpointRequest{Url: "https://shop.example.com/sendonce"})
	if err != nil {
		return err
	}
	if endpoint.JSON200 == nil {
		return fmt.Errorf("endpoint: %s", endpoint.Body)
	}
	if _, err := client.DeleteEndpointWithResponse(ctx, endpoint.JSON200.Data.Id.String(), nil); err != nil {
		return err
	}
	h := http.Header{} // of a webhook, from the environment
	for _, name := range []string{"webhook-id", "webhook-timestamp", "webhook-signature"} {
		h.Set(name, os.Getenv(strings.ToUpper(strings.ReplaceAll(name, "-", "_"))))
	}
	body, secret := os.Getenv("WEBHOOK_BODY"), os.Getenv("WEBHOOK_SECRET")
	fmt.Println("verified", verify(h, body, secret), verify(h, body+" ", secret))
	return nil
}

const queue = "generated-go"

// submit submits a task twice with the same key and returns its id.
func submit(ctx context.Context, client *sendonce.ClientWithResponses) (string, error) {
	key := fmt.Sprint("order-", time.Now().UnixNano())
	sms := sendonce.SendRequest{PhoneNumber: "13800138000", Content: new("Your code is 123456"), Queue: new(queue), IdempotencyKey: &key}
	first, err := client.SendWithResponse(ctx, nil, sms)
	if err != nil {
		return "", err
	}
	if first.JSON200 == nil {
		return "", fmt.Errorf("send: %s", first.Body)
	}
	again, err := client.SendWithResponse(ctx, nil, sms)
	if err != nil {
		return "", err
	}
	if again.JSON200 == nil || again.JSON200.Data.TaskId != first.JSON200.Data.TaskId {
		return "", fmt.Errorf("send again: %s", again.Body)
	}
	found, err := client.TaskByKeyWithResponse(ctx, key, nil)
	if err != nil {
		return "", err
	}
	if found.JSON200 == nil {
		return "", fmt.Errorf("by key: %s", found.Body)
	}
	fmt.Println("submitted", found.JSON200.Data.TaskId, again.HTTPResponse.Header.Get("Idempotency-Replayed"))
	return found.JSON200.Data.TaskId.String(), nil
}

// claimAndReport claims tasks of the queue and reports each as sent, although nothing is sent. It prints whether a claimed
// task is the given one.
func claimAndReport(ctx context.Context, client *sendonce.ClientWithResponses, task string) error {
	claimed, err := client.ClaimByPostWithResponse(ctx, nil, sendonce.ClaimRequest{AppId: queue, Queue: new(queue)})
	if err != nil {
		return err
	}
	if claimed.JSON200 == nil {
		return fmt.Errorf("claim: %s", claimed.Body)
	}
	for _, t := range claimed.JSON200.Data {
		var claim sendonce.GivenID = t.ClaimId
		report := sendonce.ReportRequest{TaskId: t.TaskId.String(), AppId: new(queue), ClaimId: &claim, Status: new(sendonce.ReportRequestStatus(2))} // 2 = sent
		reported, err := client.ReportWithResponse(ctx, nil, report)
		if err != nil {
			return err
		}
		if reported.JSON200 == nil {
			return fmt.Errorf("report: %s", reported.Body)
		}
		fmt.Println("reported", t.TaskId.String() == task, reported.JSON200.Data.State)
	}
	return nil
}

// verify checks the signature of a webhook, as openapi.yaml describes it.
func verify(h http.Header, body, secret string) bool {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		return false
	}
	sum := hmac.New(sha256.New, key)
	fmt.Fprintf(sum, "%s.%s.%s", h.Get("webhook-id"), h.Get("webhook-timestamp"), body)
	want := "v1," + base64.StdEncoding.EncodeToString(sum.Sum(nil))
	for _, signature := range strings.Fields(h.Get("webhook-signature")) {
		if hmac.Equal([]byte(signature), []byte(want)) {
			return true
		}
	}
	return false
}
