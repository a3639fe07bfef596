package sweep_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

// A call that runs a failing bulk change also runs the other bulk changes, and maintenance.
func TestFailingBulkChangeDoesNotStopOthers(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	const path = cluster.AdminPath + "bulk"
	var ids []string
	for _, queue := range []string{"failing", "failing", "other"} {
		s.SubmitTo(queue)
		started := s.Post(path, `{"action":"cancel","filter":{"state":"pending","queue":"`+queue+`"},"expected":9,"reason":"withdrawn"}`).RequireOK()
		ids = append(ids, started.Data("id").(string))
	}
	s.Exec(`create function refuse() returns trigger language plpgsql as 'begin if new.filter->>''queue'' = ''failing'' and new.place is not null then raise exception using errcode = ''22003''; end if; return new; end'`)
	s.Exec(`create trigger refuse before update on bulk_changes for each row execute function refuse()`)
	s.Exec(`update upkeep set begun_at = '-infinity' where what = 'maintenance'`)

	cluster.Eventually(t, func() bool {
		s.Exec(`update bulk_changes set leased_to = null`) // on a slow machine the time of one call is not enough for all three, nor for maintenance
		require.Equal(t, 500, s.Tick("sweep").Status)
		maintained := s.Count(`select count(*) from upkeep where what = 'maintenance' and begun_at > '-infinity'`) == 1
		return maintained && s.Get(path+"/"+ids[2]).Data("state") == "finished"
	}, "the call does not end with the first failure")
	for i, state := range []string{"running", "running", "finished"} {
		require.Equal(t, state, s.Get(path+"/"+ids[i]).Data("state"))
	}
}

func TestTasksThatCannotBeHandledDoNotStopMaintenance(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	s.SubmitTo("q")
	s.Exec(`update task_live set state = 0, due_at = now()`)
	s.Exec(`revoke update on task_live from sendonce_hot`)
	s.Exec(`update upkeep set begun_at = '-infinity' where what = 'maintenance'`)
	cluster.Eventually(t, func() bool {
		require.Equal(t, 500, s.Tick("sweep").Status)
		return s.Count(`select count(*) from upkeep where what = 'maintenance' and begun_at > '-infinity'`) == 1
	})
}
