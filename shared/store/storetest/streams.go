package storetest

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/messages"
)

// RelayDue lets one relay send what is due, as it is.
func (db *DB) RelayDue(t *testing.T, b *Broker) store.Relayed {
	t.Helper()
	relayed, err := db.Messages.Relay(t.Context(), 100, b.Publish)
	require.NoError(t, err)
	return relayed
}

// SaveMany saves n messages to users at once, as many calls would.
func SaveMany(t *testing.T, conn *pgx.Conn, n int) {
	t.Helper()
	for _, sql := range []string{
		`set session_replication_role = replica`,
		fmt.Sprintf(`insert into messages (id, call_id, fingerprint, caller_id, sender, client_msg_id, kind, destination, type, data, confirm, max_sends, expected_receipts)
			select g, g, g, 0, 'shop', g::text, 2, 'bob', 'b', '1', false, 5, 1 from (select gen_random_uuid() from generate_series(1, %d)) r (g)`, n),
		`insert into message_live (id, kind, stream, remaining_sends) select id, kind, 'USERS', 5 from messages where destination = 'bob'`,
	} {
		_, err := conn.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
}

func SendTo(kind msg.Kind, name string) func(*messages.Submission) {
	return func(m *messages.Submission) { m.To = msg.Address{Kind: kind, Name: name} }
}
