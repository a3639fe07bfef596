package store

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestWhoCallsFirstTakesTheConnectionThatIsUnderWay(t *testing.T) {
	t.Parallel()
	db := open(t)
	db.Connect()
	require.NoError(t, db.Ping(t.Context()))
	_, err := db.Sweep(t.Context(), 1)
	require.NoError(t, err)
	require.EqualValues(t, 1, db.Stats()["hot"].NewConnsCount())
	require.Zero(t, db.Stats()["read"].NewConnsCount())
}

func TestAnEarlyConnectionThatFailsHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	db := openAt(t, "postgres://nobody@127.0.0.1:1/nothing")
	db.Connect()
	for range 2 {
		_, err := db.Sweep(t.Context(), 1)
		require.ErrorContains(t, err, "connection refused")
	}
}

func TestAnEarlyConnectionThatHangsHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	config, err := pgconn.ParseConfig(sandbox.NewDatabase(t))
	require.NoError(t, err)
	network, address := pgconn.NetworkAddress(config.Host, config.Port)
	front, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer front.Close()
	db := openAt(t, fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", config.User, front.Addr(), config.Database))
	db.Connect()
	silent, err := front.Accept()
	require.NoError(t, err)
	defer silent.Close()
	go func() {
		for {
			client, err := front.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial(network, address)
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(server, client) }()
			go func() { _, _ = io.Copy(client, server) }()
		}
	}()
	began := time.Now()
	_, err = db.Sweep(t.Context(), 1)
	require.NoError(t, err)
	require.Less(t, time.Since(began), loginTimeout-time.Second)
}

func TestClosingDoesNotWaitForAnEarlyConnection(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	db, err := Open(Config{URL: "postgres://nobody@" + silent.Addr().String() + "/nothing"})
	require.NoError(t, err)
	db.Connect()
	conn, err := silent.Accept()
	require.NoError(t, err)
	defer conn.Close()
	var calls sync.WaitGroup
	calls.Go(func() {
		_, err := db.Sweep(t.Context(), 1)
		require.Error(t, err)
	})
	began := time.Now()
	db.Close()
	require.Less(t, time.Since(began), loginTimeout)
	calls.Wait()
}
