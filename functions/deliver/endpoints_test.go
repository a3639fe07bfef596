package deliver_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
)

func TestUndecryptableSecretDelaysNoOtherEndpoint(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t)
	undecryptable, other := cluster.NewReceiver(t, nil), cluster.NewReceiver(t, nil)
	secret := w.AddEndpoint(undecryptable.URL).Secret
	otherEndpoint := w.AddEndpoint(other.URL)
	w.Admin.Exec(`update webhook_endpoints set description = secret, secret = 'enc2.00000000.AAAA' where url = $1`, undecryptable.URL)

	w.FinishTask()
	other.Event(t, 1, otherEndpoint.Secret)
	require.NoError(t, w.Process(cluster.All).WaitFor(t.Context(), "signing secret cannot be decrypted"))
	require.Zero(t, undecryptable.Calls())
	waiting := cluster.WaitDeliveries(w, "pending", 1)
	require.Zero(t, waiting[0].Attempts, "no try is used up")
	require.Empty(t, waiting[0].Tries)

	w.Admin.Exec(`update webhook_endpoints set secret = description where url = $1`, undecryptable.URL)
	cluster.MakeDue(w)
	undecryptable.Event(t, 1, secret)
}

// Messages that cannot be signed wait until their leases end. Meanwhile they do not count as posts in flight, and one log line is
// written for all of them.
func TestUndecryptableSecretDelaysNoMessagesOfOthers(t *testing.T) {
	t.Parallel()
	const n = 200
	w := cluster.Open(t)
	undecryptable, other := cluster.NewReceiver(t, nil), cluster.NewReceiver(t, nil)
	w.Admin.NewCaller("shop", "submitter").Get(cluster.SigningSecretPath)
	setSecret := func(assignments string) {
		w.Admin.Exec(`update webhook_endpoints set ` + assignments + ` where url is null and caller_id = (select id from callers where name = 'shop')`)
	}
	setSecret(`description = secret, secret = 'enc2.00000000.AAAA'`)
	insertPosts(w.Admin, w.Admin.Count(`select id from callers where name = 'shop'`), undecryptable.URL, n)

	w.Save(other.URL, cluster.WithoutConfirm)
	cluster.Eventually(t, func() bool { return other.Calls() == 1 })
	// Each message waits for the end of its lease, and has used up no send.
	w.Admin.WaitCount(n, `select count(*) from message_live where send_no = 0 and remaining_sends = 5 and next_at > now() + interval '5 seconds'`)
	require.Zero(t, undecryptable.Calls())
	require.Equal(t, 1, strings.Count(w.Process(cluster.All).Output(), "signing secret cannot be decrypted"))

	setSecret(`secret = description`)
	cluster.MakeDue(w)
	require.Equal(t, 204, w.Admin.Tick("deliver").Status)
	w.Admin.WaitCount(n+1, `select count(*) from message_done`) // all are delivered
	require.GreaterOrEqual(t, undecryptable.Calls(), n, "more if MakeDue came while a message was being posted")
}

func TestPendingDeliveriesContinueAfterEnable(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t, "SENDONCE_WEBHOOK_DISABLE_AFTER=1s", "SENDONCE_SAFETY_TICK=1h")
	broken, other, healthy := cluster.NewReceiver(t, cluster.RespondWith(500, 500, 204)), cluster.NewReceiver(t, nil), cluster.NewReceiver(t, nil)
	registered := w.AddEndpoint(broken.URL)
	secret := w.AddEndpoint(other.URL, "webhook.disabled").Secret
	w.AddEndpoint(healthy.URL, "task.succeeded")
	first := w.FinishTask()
	// The endpoint has failed for a second; the next failure disables it.
	w.Admin.WaitCount(1, `select count(*) from webhook_endpoints where enabled and failing_since < now() - interval '1 second'`)
	second := w.FinishTask()

	event := other.Event(t, 1, secret)
	require.Equal(t, "sendonce.webhook.disabled.v1", event.Type)
	var data api.EndpointEventData
	require.NoError(t, json.Unmarshal(event.Data, &data))
	require.Equal(t, registered.ID, data.EndpointID)
	require.Equal(t, "failing", data.Reason)
	require.NotNil(t, data.FailingSince)
	disabled, err := w.Client.Endpoint(t.Context(), registered.ID)
	require.NoError(t, err)
	require.False(t, disabled.Enabled)
	require.Equal(t, "failing", disabled.DisabledReason)
	w.FinishTask() // the disabled endpoint does not receive this event
	cluster.Eventually(t, func() bool { return healthy.Calls() == 3 })
	cluster.WaitDeliveries(w, "pending", 2)

	enabled, err := w.Client.EnableEndpoint(t.Context(), registered.ID)
	require.NoError(t, err)
	require.True(t, enabled.Enabled)
	require.Nil(t, enabled.FailingSince)
	subjects := []string{broken.Event(t, 3, registered.Secret).Subject, broken.Event(t, 4, registered.Secret).Subject}
	require.ElementsMatch(t, []string{first, second}, subjects, "the waiting events are delivered")
	cluster.WaitDeliveries(w, "delivered", 2+1+3) // to broken, other and healthy
	cluster.WaitDeliveries(w, "pending", 0)
	require.Equal(t, 4, broken.Calls())
}
