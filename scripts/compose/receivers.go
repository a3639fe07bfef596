package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// outgoingSubnet is the subnet of the network outgoing. The services that call webhooks and WeChat are in this
// network. The subnet is fixed, so that the address of this machine in it is known in advance.
const (
	outgoingSubnet  = "10.77.1.0/24"
	receiverAddress = "10.77.1.1:9000"
)

// receivers are the servers that the functions call: a fake WeChat, and a receiver that records
// webhooks in the ledger of the current traffic.
type receivers struct {
	wechat  *sandbox.WeChat
	number  int // of the current traffic
	current atomic.Pointer[traffic]
}

// startReceivers starts the servers, which run until the end of this process. The network outgoing must exist, because
// this machine has receiverAddress only in this network.
func startReceivers(ctx context.Context) (*receivers, error) {
	wechat, err := sandbox.StartWeChat(ctx, sandbox.WeChatOptions{})
	if err != nil {
		return nil, err
	}
	target, err := url.Parse(wechat.URL())
	if err != nil {
		return nil, err
	}
	r := &receivers{wechat: wechat}
	mux := http.NewServeMux()
	mux.HandleFunc("/webhook", r.webhook)
	mux.Handle("/", httputil.NewSingleHostReverseProxy(target))
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", receiverAddress)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: waitTimeout}
	go func() { _ = server.Serve(listener) }()
	return r, nil
}

// registerEndpoint registers the receiver of webhooks as an endpoint.
func (r *receivers) registerEndpoint(ctx context.Context, client *api.Client) error {
	_, err := client.AddEndpoint(ctx, api.EndpointRequest{URL: "http://" + receiverAddress + "/webhook", Events: []string{"task.succeeded"}})
	return err
}

// newTraffic returns a new traffic and makes it the current one: from now on its ledger records the webhooks.
func (r *receivers) newTraffic(client *api.Client) *traffic {
	r.number++
	t := newTraffic(client, r.number)
	r.current.Store(t)
	return t
}

func (r *receivers) webhook(_ http.ResponseWriter, req *http.Request) {
	t := r.current.Load()
	if t == nil {
		return // there is no traffic yet
	}
	var event struct {
		Data struct {
			TaskID string `json:"task_id"`
		} `json:"data"`
	}
	if err := json.NewDecoder(req.Body).Decode(&event); err != nil || event.Data.TaskID == "" {
		t.fail(fmt.Errorf("a webhook without a task: %v", err))
		return
	}
	t.eventReceived(event.Data.TaskID)
}

// delivered returns how often WeChat has delivered each subscribe message, by the data of the message.
func (r *receivers) delivered() map[string]int {
	counts := map[string]int{}
	for _, send := range r.wechat.Delivered() {
		counts[string(send.Data)]++
	}
	return counts
}
