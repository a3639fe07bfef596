package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/functions/internal/contract"
	"github.com/sendonce/sendonce/shared/task"
)

// A call with any cursor, valid or not, must get a page or a 400.
func TestInvalidCursorsCauseNoInternalError(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	taskID := s.SubmitTo(task.DefaultQueue)
	subscribeID := s.Subscribe(cluster.Booking(1, "")).Data("id")
	const maxInt64 = "9223372036854775807"
	cursors := []string{taskID, "open." + taskID, "1." + taskID} // the forms of the cursors of tasks, alerts and sends of a subscribe message
	for _, n := range []string{"2147483648", "-2147483649", maxInt64, "-9223372036854775808", "9223372036854775808"} {
		cursors = append(cursors, n, n+"."+n, n+"."+n+"."+n, n+".1.1", "1."+n+".1", "1.1."+n, "1."+n, "."+n+".t", "9007199254740991."+n, "9007199254740991."+n+".t")
	}
	c, alwaysRefused := contract.Read(t), []string{}
	for pattern, operation := range c.Operations {
		for _, p := range c.Parameters(operation, "query") {
			if p["name"] != "after" || strings.Contains(pattern, "/stream/") {
				continue
			}
			req, responses := c.ExampleCall(t, s.URL, pattern), map[int]int{}
			switch pattern {
			case "GET " + cluster.AdminPath + "tasks/{task_id}":
				req.URL.Path = cluster.AdminPath + "tasks/" + taskID
			case "GET " + cluster.SubscribePath + "{id}":
				req.URL.Path = fmt.Sprint(cluster.SubscribePath, subscribeID)
			}
			query := req.URL.Query()
			for _, cursor := range cursors {
				query.Set("after", cursor)
				got := s.Get(req.URL.Path + "?" + query.Encode())
				require.Contains(t, []int{200, 400}, got.Status, "%s after %s\n%s", pattern, cursor, got.Text)
				responses[got.Status]++
			}
			if responses[200] == 0 {
				alwaysRefused = append(alwaysRefused, pattern)
			}
		}
	}
	slices.Sort(alwaysRefused)
	require.Equal(t, []string{"GET /api/v1/messages", "GET /api/v1/messages/peers"}, alwaysRefused, "only these operations refuse all cursors above: their cursor is the id of an existing message")
}
