package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// If forwarderDatabase is set, the test binary runs a forwarder for this database and service.
const (
	forwarderDatabase = "OUTBOX_TEST_DATABASE"
	forwarderService  = "OUTBOX_TEST_SERVICE"
)

func runForwarderProcess() {
	db, err := pgxpool.New(context.Background(), os.Getenv(forwarderDatabase))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	NewForwarder(db, api.NewClient(os.Getenv(forwarderService), "order", "secret"), slog.Default()).Run(context.Background())
}

func startForwarder(t *testing.T, db *pgxpool.Pool, service *fakeService) *sandbox.Process {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	return sandbox.StartProcess(t, self, []string{forwarderDatabase + "=" + db.Config().ConnString(), forwarderService + "=" + service.URL})
}

func TestMessageOfKilledForwarderIsStoredOnce(t *testing.T) {
	t.Parallel()

	t.Run("killed after the service stored the message, before its response", func(t *testing.T) {
		t.Parallel()
		db, service := database(t), newFakeService(t)
		victims := make(chan *sandbox.Process, 1)
		killed := make(chan error, 1)
		var first sync.Once // the second forwarder is not killed
		service.beforeResponse = func(http.ResponseWriter) {
			first.Do(func() { killed <- (<-victims).Kill() })
		}
		ids := put(t, db, 1)
		victims <- startForwarder(t, db, service)
		require.NoError(t, <-killed)
		requireStoredOnce(t, db, service, ids[0])
	})

	t.Run("killed between the response and the commit of the delete", func(t *testing.T) {
		t.Parallel()
		db, service := database(t), newFakeService(t)
		exec(t, db, `CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN OLD; END $$`)
		exec(t, db, `CREATE TRIGGER hold BEFORE DELETE ON message_outbox FOR EACH ROW EXECUTE FUNCTION hold()`)
		gate, err := db.Acquire(t.Context())
		require.NoError(t, err)
		defer gate.Release()
		_, err = gate.Exec(t.Context(), "SELECT pg_advisory_lock(1)")
		require.NoError(t, err)

		ids := put(t, db, 1)
		victim := startForwarder(t, db, service)
		eventually(t, func() bool {
			return count(t, db, "pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'") == 1
		})
		require.NoError(t, victim.Kill())
		_, err = gate.Exec(t.Context(), "SELECT pg_advisory_unlock(1)")
		require.NoError(t, err)
		requireStoredOnce(t, db, service, ids[0])
	})
}

// requireStoredOnce starts a second forwarder and waits until it has sent the message of the killed forwarder again.
// The service must then have the message once.
func requireStoredOnce(t *testing.T, db *pgxpool.Pool, service *fakeService, id string) {
	t.Helper()
	require.Equal(t, 1, count(t, db, "message_outbox"))
	startForwarder(t, db, service)
	eventually(t, func() bool { return count(t, db, "message_outbox") == 0 })
	service.mu.Lock()
	defer service.mu.Unlock()
	require.Equal(t, []string{id, id}, service.posts, "the message is posted again with the same id")
	require.Len(t, service.stored, 1)
}
