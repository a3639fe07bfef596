package functions

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// pooled gives the way through PgBouncer to a database.
func pooled(t *testing.T, url string) string {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	return sandbox.NewPgBouncer(t).URL(config.Database)
}

func TestTheWholeStoryIsToldThroughPgBouncer(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	env, err := fn.NewEnv(fn.Config{
		DatabaseURL: pooled(t, url), Username: "admin", Password: "secret", EncryptionKeys: sandbox.EncryptionKey, Roles: fn.Roles(sandbox.Roles), Pooler: true,
	}, sandbox.Log(t))
	require.NoError(t, err)
	t.Cleanup(env.Close)
	h, err := fn.Handler(env, Catalogue()...)
	require.NoError(t, err)
	teller{serveHandler(t, h).connect(url), newWitness(t)}.tellAll()
}

func TestEventsAndMessagesGoTheirWayThroughPgBouncer(t *testing.T) {
	t.Parallel()
	o := newPostOffice(t)
	c := o.grow(insiders, "DATABASE_URL="+pooled(t, o.url), "SENDONCE_DATABASE_POOLER=true")
	shop := newReceiver(t, nil)
	c.endpoint(shop.URL)
	finished := c.finish(20)
	c.until(c.save("msg.orders.paid", once), "sent")
	c.told(20)
	shop.toldOnce(t, finished)
}
