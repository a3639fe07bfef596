package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/sendonce/sendonce/shared/api"
)

const (
	demoApp     = "demo-sender"
	demoLimit   = 10
	demoWait    = 20 // seconds that a claim waits for work
	succeeded   = 2
	firstPause  = 500 * time.Millisecond
	longestRest = 10 * time.Second
)

// demoSender plays the phone: what it claims it prints and reports as sent.
type demoSender struct {
	client *api.Client
	out    io.Writer
}

// run claims until ctx is done. It never asks twice within a moment, whatever
// the server answers.
func (d demoSender) run(ctx context.Context) {
	limit, wait := demoLimit, demoWait
	rest := firstPause
	for ctx.Err() == nil {
		asked := time.Now()
		tasks, err := d.client.Claim(ctx, api.ClaimRequest{AppID: demoApp, Limit: &limit, Wait: &wait})
		for _, task := range tasks {
			fmt.Fprintf(d.out, "sent to %s: %s\n", mask(task.PhoneNumber), printable(task.Content))
			// What was sent is reported even when we are asked to stop.
			d.report(context.WithoutCancel(ctx), task)
		}
		switch {
		case err != nil && ctx.Err() == nil:
			fmt.Fprintf(d.out, "demo sender: claim: %v; again in %s\n", err, rest)
			pause(ctx, rest)
			rest = min(2*rest, longestRest)
		case len(tasks) == 0 && time.Since(asked) < firstPause:
			pause(ctx, firstPause)
		default:
			rest = firstPause
		}
	}
}

// report tells the server that task was sent; the client repeats it while the
// server is busy. A task whose report is lost for good is claimed again when its
// lease ends.
func (d demoSender) report(ctx context.Context, task api.ClaimedTask) {
	ctx, cancel := context.WithTimeout(ctx, longestRest)
	defer cancel()
	status := succeeded
	_, err := d.client.Report(ctx, api.ReportRequest{TaskID: task.TaskID, AppID: demoApp, ClaimID: task.ClaimID, Status: &status})
	if err != nil {
		fmt.Fprintf(d.out, "demo sender: report of task %s: %v\n", task.TaskID, err)
	}
}

// mask hides the middle of a phone number, or all of a short one.
func mask(phone string) string {
	digits := []rune(printable(phone))
	switch {
	case len(digits) >= 8:
		return string(digits[:3]) + "****" + string(digits[len(digits)-4:])
	case len(digits) >= 5:
		return string(digits[:1]) + "****" + string(digits[len(digits)-1:])
	default:
		return "****"
	}
}

// printable keeps a message from moving the cursor of the terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}

// pause waits for d and tells whether ctx is still alive.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
