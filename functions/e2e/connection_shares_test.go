package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/settings"
	"github.com/sendonce/sendonce/shared/task"
)

// Calls of one caller that wait for a lock use at most half of the connections to Postgres.
func TestSlowCallsOfOneCallerLeaveConnectionsToOthers(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	database := cluster.NewClient(t, "").Connect(url)
	database.RaiseTimeoutsOfFunctions()
	admin := cluster.ServeOn(t, url, func(c *settings.Config) { c.MaxConns = 4 })
	greedy, honest := admin.NewCaller("greedy", "sender"), admin.NewCaller("honest", "sender")
	admin.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"a"}`).RequireOK()
	id := greedy.Get("/api/v1/sms/tasks/pending?app_id=app").List()[0]["task_id"]
	extend := func(s *cluster.Client, id any) int {
		return s.Post(fmt.Sprintf("/api/v1/sms/tasks/%v/extend", id), `{"app_id":"app","lease_seconds":60}`).Status
	}
	database.Exec(`begin; select from task_live for update`)

	statuses := make(chan int, 8)
	for range cap(statuses) {
		go func() { statuses <- extend(greedy, id) }()
	}
	waiting := func() int {
		return admin.Count(`select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`)
	}
	cluster.Eventually(t, func() bool { return waiting() == 2 }, "two calls wait for the lock: on half of the four connections")
	for range 5 {
		status := make(chan int, 1)
		go func() { status <- extend(honest, task.NewID()) }()
		require.Equal(t, 404, cluster.Within(t, 5*time.Second, status, "another caller's call"))
		require.Equal(t, 2, waiting())
	}
	database.Exec(`commit`)
	for range cap(statuses) {
		require.Equal(t, 200, <-statuses)
	}
}
