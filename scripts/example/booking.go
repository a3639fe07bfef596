package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/sendonce/sendonce/shared/api"
)

// The template and the only user of the fake WeChat of `make run`.
const (
	bookingTemplate = "tmpl-1"
	bookingUser     = "oABC123"
)

// booking submits the confirmation of one booking three times to the `make run` that keeps its data in home. Then it
// prints how many calls the fake WeChat got for the message, and how often the fake WeChat delivered the message.
func booking(ctx context.Context, home string, out io.Writer) error {
	run, err := readRun(ctx, home)
	if err != nil {
		return err
	}
	if run["WECHAT_URL"] == "" {
		return errors.New("make run uses the real WeChat, because WECHAT_APP_ID is set: start it without WECHAT_APP_ID to see a booking")
	}
	ctx, cancel := context.WithTimeout(ctx, demoTimeout)
	defer cancel()
	client := api.NewClient(run["SENDONCE_URL"], run["SENDONCE_USER"], run["SENDONCE_PASSWORD"])
	start := time.Now()
	id := api.NumberOf(uint64(start.UnixMilli()))
	page := "pages/booking?id=" + string(id)
	submit := func() error {
		response, err := client.Subscribe(ctx, api.SubscribeRequest{
			BusinessType: "course_booking", BusinessID: id, TemplateType: "BOOKING_CONFIRM", ReceiverUserID: "9",
			TemplateID: bookingTemplate, ReceiverOpenID: bookingUser, MessageData: json.RawMessage(`{"thing1": {"value": "瑜伽课"}}`), PagePath: page,
		})
		if err != nil {
			return err
		}
		outcome := "will be sent"
		if response.Skipped {
			outcome = "skipped, as it is " + map[int]string{0: "being sent", 1: "sent", 2: "failed"}[response.SendStatus]
		}
		fmt.Fprintf(out, "booking %s submitted: message %d %s\n", id, response.ID, outcome)
		return nil
	}
	for range 2 {
		if err := submit(); err != nil {
			return err
		}
	}
	isSent := func() (bool, error) {
		m, err := client.SubscribeSent(ctx, api.SubscribeSentRequest{BusinessType: "course_booking", BusinessID: id, TemplateType: "BOOKING_CONFIRM", ReceiverUserID: "9"})
		return m.Sent, err
	}
	if err := waitFor(ctx, "sent", isSent); err != nil {
		return err
	}
	fmt.Fprintf(out, "seen as sent %s after the first submission\n", time.Since(start).Round(time.Millisecond))
	if err := submit(); err != nil {
		return err
	}
	calls, delivered, err := countAtWeChat(ctx, run["WECHAT_URL"], run["WECHAT_LEDGER_SECRET"], page)
	if err == nil {
		fmt.Fprintf(out, "WeChat: calls for this message: %d, delivered to %s: %d\n", calls, bookingUser, delivered)
	}
	return err
}

// countAtWeChat returns how many calls of the fake WeChat's ledger have this page, and how many of these calls delivered
// their message.
func countAtWeChat(ctx context.Context, url, secret, page string) (calls, delivered int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/ledger", nil)
	if err != nil {
		return 0, 0, err
	}
	req.SetBasicAuth("ledger", secret)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, 0, fmt.Errorf("read the ledger of WeChat: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return 0, 0, fmt.Errorf("read the ledger of WeChat: it returned %s", res.Status)
	}
	var ledger struct {
		Sends []struct {
			Page      string `json:"page"`
			Delivered bool   `json:"delivered"`
		} `json:"sends"`
	}
	if err := json.NewDecoder(res.Body).Decode(&ledger); err != nil {
		return 0, 0, fmt.Errorf("read the ledger of WeChat: %w", err)
	}
	for _, s := range ledger.Sends {
		if s.Page != page {
			continue
		}
		calls++
		if s.Delivered {
			delivered++
		}
	}
	return calls, delivered, nil
}
