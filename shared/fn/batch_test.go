package fn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/task"
)

func TestChunksHoldAllItemsInOrder(t *testing.T) {
	t.Parallel()
	var items []json.RawMessage
	for _, size := range []int{10, chunkBytes, chunkBytes + 1, chunkBytes / 2, chunkBytes / 2, 1} {
		items = append(items, make([]byte, size))
	}
	var starts, lengths []int
	for start, chunk := range chunks(items) {
		starts, lengths = append(starts, start), append(lengths, len(chunk))
	}
	require.Equal(t, []int{0, 1, 2, 3, 5}, starts)
	require.Equal(t, []int{1, 1, 1, 2, 1}, lengths)
}

func TestBatchItemHasEnvelopeOfItsOwn(t *testing.T) {
	t.Parallel()
	c := &Call{RequestID: "r1"}
	require.Equal(t, api.BatchItem{Code: 200, Message: "success", Data: 1}, c.Item(1, nil))
	bad := task.Invalid([]task.Field{{Name: "phone_number", Message: "is required"}})
	require.Equal(t, api.BatchItem{Code: 400, Message: bad.Message, Error: "invalid_request",
		Fields: []api.Field{{Field: "phone_number", Message: "is required"}}}, c.Item(nil, bad))
	require.Empty(t, c.attrs)
	require.Equal(t, api.BatchItem{Code: 500, Message: "internal error, request id r1", Error: "internal"}, c.Item(nil, errors.New("bug 138")))
	require.Equal(t, []slog.Attr{slog.String("item_error", "bug 138")}, c.attrs)
}

func TestLogLineOfManyFailedItemsIsBounded(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, HTTP("batch", func(*Env, struct{}) Routes {
		return Routes{"POST /api/v1/all": Parameters(Submitter, func(_ context.Context, c *Call, _ struct{}) (any, error) {
			for i := range 1000 {
				c.Item(nil, fmt.Errorf("bug %d: %s", i, strings.Repeat("x", 80)))
			}
			return nil, nil
		})}
	}))
	h.call("POST", "/api/v1/all", "")
	line := h.callLines(1)[0]
	require.Equal(t, 1000.0, line["items_failed"])
	require.Contains(t, h.log.String(), "bug 9:")
	require.NotContains(t, h.log.String(), "bug 10:")
	require.Less(t, len(h.log.String()), 2000)
}
