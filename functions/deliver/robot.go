package deliver

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/sendonce/sendonce/shared/robot"
	"github.com/sendonce/sendonce/shared/store/webhooks"
)

// robotKind is how the robots of one vendor receive a text. Most robots return 200 even if they refuse the text.
type robotKind struct {
	body    func(text string) map[string]any // returns the body of the request
	refusal func(response []byte) string     // returns why a 2xx response is a failure, or ""; nil = every 2xx response is a success

	// sign adds a signature to the body, or to the URL, and returns the URL; nil = the robots accept no signature.
	sign func(secret string, at time.Time, url string, body map[string]any) (string, error)
}

var robotKinds = map[string]robotKind{ // by format
	webhooks.FormatSlack:    {body: slackText}, // Slack refuses with a 4xx
	webhooks.FormatDingTalk: {msgtypeText, errcodeRefusal, signDingTalk},
	webhooks.FormatWeCom:    {body: msgtypeText, refusal: errcodeRefusal},
	webhooks.FormatFeishu:   {feishuText, feishuRefusal, signFeishu},
}

func slackText(text string) map[string]any { return map[string]any{"text": text} }

func msgtypeText(text string) map[string]any {
	return map[string]any{"msgtype": "text", "text": map[string]string{"content": text}}
}

func feishuText(text string) map[string]any {
	return map[string]any{"msg_type": "text", "content": map[string]string{"text": text}}
}

// notRobot is the error for a 2xx response, such as a login page, without the result code of a robot.
const notRobot = "the response is not that of a robot of this format: check the URL and the format"

// errcodeRefusal is the refusal function for DingTalk and WeCom.
func errcodeRefusal(content []byte) string {
	var response struct {
		Code *int64 `json:"errcode"`
	}
	if err := json.Unmarshal(content, &response); err != nil || response.Code == nil {
		return notRobot
	}
	return refusedWith("errcode", *response.Code)
}

// feishuRefusal is the refusal function for Feishu and Lark. The response of an older installation has a StatusCode instead of a code.
func feishuRefusal(content []byte) string {
	var response struct {
		Code   *int64 `json:"code"`
		Status *int64 `json:"StatusCode"`
	}
	if err := json.Unmarshal(content, &response); err != nil {
		return notRobot
	}
	switch {
	case response.Code != nil:
		return refusedWith("code", *response.Code)
	case response.Status != nil:
		return refusedWith("StatusCode", *response.Status)
	}
	return notRobot
}

// refusedWith returns the error for a code, or "" for 0. The error does not contain the text of the robot's response, because errors
// are logged. The caller that registered the URL finds this text in the response of the attempt.
func refusedWith(name string, code int64) string {
	if code == 0 {
		return ""
	}
	return fmt.Sprintf("the robot refused the text with %s %d: its response says why", name, code)
}

// postToRobot posts an event as a text, which may be about other events, too.
func (d *deliverer) postToRobot(ctx context.Context, kind robotKind, w webhooks.DueDelivery) attempt {
	event, err := robot.Read(w.Payload)
	if err != nil {
		return attempt{at: time.Now(), err: "the event cannot be shown as a text: " + err.Error()}
	}
	deadline, _ := ctx.Deadline()
	waitCtx, cancel := context.WithDeadline(ctx, deadline.Add(-d.cfg.Timeout)) // so that a POST has its whole timeout: if ctx cut it off, it would not count as a try
	defer cancel()
	return d.robotTexts.post(waitCtx, w.EndpointID, event, w.Single(), func(text string) attempt { return d.postText(ctx, kind, w, text) })
}

// postText posts a text to the robot of a delivery.
func (d *deliverer) postText(ctx context.Context, kind robotKind, w webhooks.DueDelivery, text string) attempt {
	url, content := w.URL, kind.body(text)
	if kind.sign != nil && len(w.Secrets) > 0 {
		var err error
		if url, err = kind.sign(w.Secrets[0], time.Now(), url, content); err != nil {
			return attempt{at: time.Now(), err: errBadURL}
		}
	}
	body, err := json.Marshal(content)
	if err != nil {
		return attempt{at: time.Now(), err: err.Error()}
	}
	return d.poster.send(ctx, postRequest{url: url, contentType: "application/json; charset=utf-8", body: body, refusal: kind.refusal})
}
