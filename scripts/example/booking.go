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

// What the WeChat of `make run` knows.
const (
	bookingTemplate = "tmpl-1"
	bookingUser     = "oABC123"
)

// booking has a booking confirmed beside the `make run` of home. It is ordered
// again and again, as by a business whose calls are doubled and repeated, and
// WeChat's ledger tells how often it was sent.
func booking(ctx context.Context, home string, out io.Writer) error {
	beside, err := readRun(ctx, home)
	if err != nil {
		return err
	}
	if beside["WECHAT_URL"] == "" {
		return errors.New("make run sends through the WeChat of WECHAT_APP_ID: start it without that to be shown a booking")
	}
	ctx, cancel := context.WithTimeout(ctx, demoLimit)
	defer cancel()
	client := api.NewClient(beside["SENDONCE_URL"], beside["SENDONCE_USER"], beside["SENDONCE_PASSWORD"])
	ordered := time.Now()
	id := api.NumberOf(uint64(ordered.UnixMilli()))
	page := "pages/booking?id=" + string(id)
	order := func() error {
		answer, err := client.Subscribe(ctx, api.SubscribeRequest{
			BusinessType: "course_booking", BusinessID: id, TemplateType: "BOOKING_CONFIRM", ReceiverUserID: "9",
			TemplateID: bookingTemplate, ReceiverOpenID: bookingUser, MessageData: json.RawMessage(`{"thing1": {"value": "瑜伽课"}}`), PagePath: page,
		})
		if err != nil {
			return err
		}
		what := "is to be sent"
		if answer.Skipped {
			what = "skipped, as it is " + map[int]string{0: "being sent", 1: "sent"}[answer.SendStatus]
		}
		fmt.Fprintf(out, "booking %s ordered: message %d %s\n", id, answer.ID, what)
		return nil
	}
	for range 2 {
		if err := order(); err != nil {
			return err
		}
	}
	isSent := func() (bool, error) {
		m, err := client.SubscribeSent(ctx, api.SubscribeSentRequest{BusinessType: "course_booking", BusinessID: id, TemplateType: "BOOKING_CONFIRM", ReceiverUserID: "9"})
		return m.Sent, err
	}
	if err := until(ctx, "sent", isSent); err != nil {
		return err
	}
	fmt.Fprintf(out, "sent, seen %s after the first order\n", time.Since(ordered).Round(time.Millisecond))
	if err := order(); err != nil {
		return err
	}
	asked, delivered, err := atWeChat(ctx, beside["WECHAT_URL"], beside["WECHAT_LEDGER_SECRET"], page)
	if err == nil {
		fmt.Fprintf(out, "at WeChat: calls for it: %d, delivered to %s: %d\n", asked, bookingUser, delivered)
	}
	return err
}

// atWeChat counts in WeChat's ledger what was to open the page.
func atWeChat(ctx context.Context, url, secret, page string) (asked, delivered int, err error) {
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
		return 0, 0, fmt.Errorf("read the ledger of WeChat: it answered %s", res.Status)
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
		asked++
		if s.Delivered {
			delivered++
		}
	}
	return asked, delivered, nil
}
