package sender_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sender"
)

// A sender app needs a client, an app id, a gateway and a journal.
func Example() {
	service, journal, end := startService("0198c0de-0000-7000-8000-000000000001")
	defer end()
	ctx, stop := context.WithCancel(context.Background()) // an app uses signal.NotifyContext
	defer stop()

	modem := sender.GatewayFunc(func(_ context.Context, m sender.Message) sender.Result {
		fmt.Println("sending to", m.PhoneNumber)
		stop() // an app would continue
		return sender.Result{Outcome: sender.OK}
	})
	app, err := sender.New(sender.Config{
		Client:  api.NewClient(service, "phone-1", "its token"),
		AppID:   "phone-1",
		Gateway: modem,
		Journal: journal,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("ended:", app.Run(ctx))
	// Output:
	// sending to 13800138000
	// ended: <nil>
}

// startService starts a service with one task. It returns the URL of the service, and the path for a journal.
func startService(task string) (url, journal string, end func()) {
	dir, err := os.MkdirTemp("", "so-sender-")
	if err != nil {
		panic(err)
	}
	server := httptest.NewServer(newTestService(task))
	return server.URL, filepath.Join(dir, "journal"), func() {
		server.Close()
		if err := os.RemoveAll(dir); err != nil {
			panic(err)
		}
	}
}
