package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// inAnHour schedules a task of each queue.
func (s *server) inAnHour(queues ...string) {
	at := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	for _, queue := range queues {
		r := s.post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"x","queue":"`+queue+`","send_at":"`+at+`"}`)
		require.Equal(s.t, 200, r.status, r.text)
	}
}

// woken is the answer to a poll that would wait for longer.
func (s *server) woken(waits <-chan reply) reply {
	s.t.Helper()
	select {
	case r := <-waits:
		return r
	case <-time.After(patience):
		s.t.Fatal("nobody woke the poll")
		panic("unreachable")
	}
}

func TestWhatAClaimLetHappenIsToldThoughTheClaimFails(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.inAnHour("default", "other")
	waits := s.waiting("/api/v1/sms/tasks/pending?app_id=w&queue=other&wait=30")
	s.exec(`update task_live set due_at = now() - interval '1 second'`)
	s.exec(`revoke insert on send_logs from sendonce_hot`)
	require.Equal(t, 500, s.get("/api/v1/sms/tasks/pending?app_id=x").status)
	s.exec(`grant insert on send_logs to sendonce_hot`)
	answer := s.woken(waits)
	if answer.status == 500 { // it was told so soon that it could not claim either
		answer = s.get("/api/v1/sms/tasks/pending?app_id=w&queue=other")
	}
	require.Len(t, answer.list(), 1)
}

func TestASweepWhoseAnswerIsLostTellsWhoWaits(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	proxy := sandbox.NewProxy(t, url)
	s := serveHandler(t, handler(t, proxy.URL())).connect(url)
	s.inAnHour("default")
	waits := s.waiting("/api/v1/sms/tasks/pending?app_id=w&wait=30")
	s.exec(`update task_live set due_at = now() - interval '1 second'`)
	proxy.LoseAnswer(sandbox.Containing("update task_live"))
	require.Equal(t, 503, s.tick("sweep").status)
	require.Len(t, s.woken(waits).list(), 1)
}

// What is submitted without NATS is told to nobody else.
func TestAPollLooksAgainOnceItHearsOfTasks(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	elsewhere := serveHandler(t, handler(t, url)).connect(url)
	submit := func() {
		r := elsewhere.post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"x"}`)
		require.Equal(t, 200, r.status, r.text)
	}
	broker := sandbox.NewNATSServer(t)
	broker.Kill()
	_, h := environment(t, url, func(c *fn.Config) { c.Bus = bus.Config{URL: broker.URL(), Replicas: 1} })
	s := serveHandler(t, h).connect(url)

	for _, when := range []string{"it listens for the first time", "NATS comes back"} {
		waits := s.waiting("/api/v1/sms/tasks/pending?app_id=w&wait=30")
		submit()
		require.Empty(t, waits, when)
		broker.Start()
		require.Len(t, s.woken(waits).list(), 1, when)
		broker.Kill()
	}
}
