package api_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/sendonce/sendonce/shared/api"
)

// service starts a fake Sendonce service, which responds to each path with a fixed text.
func service(replies map[string]string) *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		if reply, ok := replies[r.URL.Path]; ok {
			fmt.Fprint(w, reply)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"code":404,"message":"no such task","error":"not_found"}`)
	}))
}

// A submission with a key may be repeated: it creates one task.
func ExampleClient_Send() {
	server := service(map[string]string{
		"/api/v1/sms/send": `{"code":200,"message":"success","data":{"task_id":"018c24d2-2100-7a5e-9b1f-3c6d5e4f7a81","status":0,
			"state":"pending","final_content":"您的验证码是123456，用户张三","segments":1,"encoding":"UCS-2"}}`,
	})
	defer server.Close()

	client := api.NewClient(server.URL, "system_a", "token")
	task, err := client.Send(context.Background(), api.SendRequest{
		PhoneNumber:    "13800138000",
		Params:         map[string]any{"code": 123456, "name": "张三"},
		Source:         "system_a",
		IdempotencyKey: "order-20231201-001", // or api.NewKey(), kept with the order
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(task.State, task.FinalContent)
	// Output: pending 您的验证码是123456，用户张三
}

// A sender app claims tasks, sends them and reports the outcomes.
func ExampleClient_Claim() {
	server := service(map[string]string{
		"/api/v1/sms/tasks/pending": `{"code":200,"message":"success","data":[{"task_id":"018c24d2-2100-7a5e-9b1f-3c6d5e4f7a81",
			"phone_number":"13800138000","content":"hello","claim_id":"1042","lease_until":"2023-12-01T10:10:30Z","retry_count":0}]}`,
		"/api/v1/sms/report": `{"code":200,"message":"success","data":{"task_id":"018c24d2-2100-7a5e-9b1f-3c6d5e4f7a81","status":2,
			"state":"succeeded","retry_count":0}}`,
	})
	defer server.Close()

	ctx := context.Background()
	client := api.NewClient(server.URL, "phone-1", "token")
	limit, wait, success := 10, 20, 2
	tasks, err := client.Claim(ctx, api.ClaimRequest{AppID: "sms_app_001", Limit: &limit, Wait: &wait})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, task := range tasks {
		fmt.Printf("sending %q to %s\n", task.Content, task.PhoneNumber)
		done, err := client.Report(ctx, api.ReportRequest{TaskID: task.TaskID, AppID: "sms_app_001", ClaimID: task.ClaimID, Status: &success})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(done.State)
	}
	// Output:
	// sending "hello" to 13800138000
	// succeeded
}

// Error.Code, the field "error" of the response, is a stable word that a program can compare.
func ExampleError() {
	server := service(nil)
	defer server.Close()

	_, err := api.NewClient(server.URL, "system_a", "token").TaskByKey(context.Background(), "order-20231201-001")
	var refused *api.Error
	if errors.As(err, &refused) && refused.Code == "not_found" {
		fmt.Println("no submission of this order was accepted")
	}
	// Output: no submission of this order was accepted
}
