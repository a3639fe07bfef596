package e2e

import (
	"fmt"
	"net/url"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

func (s checkedClient) pauses() {
	s.T.Helper()
	at := cluster.AdminPath + "queues/bulk"
	s.post(200, at+"/pause", `{"reason":"the gateway is being moved"}`)
	s.post(200, at+"/pause", fmt.Sprintf(`{"reason":"for an hour","until":%q}`, time.Now().Add(time.Hour).Format(time.RFC3339)))
	s.post(400, at+"/pause", `{}`)
	s.post(404, cluster.AdminPath+"queues/a%20b/pause", `{"reason":"x"}`)
	s.get(200, cluster.AdminPath+"queues")
	require.Empty(s.T, s.get(200, "/api/v1/sms/tasks/pending?app_id=app&queue=bulk").List())
	s.post(400, at+"/resume", `{"reason":" "}`)
	s.post(200, at+"/resume", `{"reason":"it is done"}`)
	s.post(404, at+"/resume", `{"reason":"it is done"}`)

	s.Exec(`insert into template_pauses (template_id, caller_id, strikes, paused_at, reason)
		values ('a', 0, 1, null, 'x'), ('b', 0, 3, now(), 'y'), ('b.预', 0, 3, now(), 'y'), ('c', 0, 3, now(), 'z')`)
	s.get(200, cluster.AdminPath+"subscribe-templates")
	var pages []string
	for after := ""; len(pages) < 4; {
		page := s.get(200, cluster.AdminPath+"subscribe-templates?limit=1&after="+url.QueryEscape(after))
		pages = append(pages, page.Data("templates").([]any)[0].(map[string]any)["template_id"].(string))
		if after, _ = page.Data("next_after").(string); after == "" {
			break
		}
	}
	require.Equal(s.T, []string{"b", "b.预", "c", "a"}, pages)
	s.get(400, cluster.AdminPath+"subscribe-templates?after=1.2")
	s.post(200, cluster.AdminPath+"subscribe-templates/c/resume", `{"reason":"corrected","caller_id":"0"}`)
	s.post(400, cluster.AdminPath+"subscribe-templates/b/resume", `{}`)
	s.post(200, cluster.AdminPath+"subscribe-templates/b/resume", `{"reason":"corrected"}`)
	s.post(404, cluster.AdminPath+"subscribe-templates/b/resume", `{"reason":"corrected"}`)
}
