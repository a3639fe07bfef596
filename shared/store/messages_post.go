package store

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/task"
)

// postLanes steps through the lanes that have messages for URLs, one probe of
// the index each.
const postLanes = `
with recursive lane (caller_id, name) as (
    (select caller_id, lane from message_live where remaining_sends > 0 and kind = 1 order by caller_id, lane limit 1)
    union all
    select n.caller_id, n.lane from lane cross join lateral (
        select m.caller_id, m.lane from message_live m
        where m.remaining_sends > 0 and m.kind = 1 and (m.caller_id, m.lane) > (lane.caller_id, lane.name)
        order by m.caller_id, m.lane limit 1
    ) n
)`

// claimPostsSQL takes what is due for URLs: of each lane the earliest, as many
// as may be in hand at once. An HTTP call may take longer than a lock should be
// held: the next send time is the lease.
const claimPostsSQL = postLanes + `, room as materialized (
    select lane.caller_id, lane.name, $2 - coalesce(b.n, 0) as n
    from lane left join unnest($3::text[], $4::integer[]) as b (name, n) on b.name = lane.name
    order by random()
), c as materialized (
    select x.id from room cross join lateral (
        select m.id from message_live m
        where m.remaining_sends > 0 and m.kind = 1 and m.caller_id = room.caller_id and m.lane = room.name and m.next_at <= now()
        order by m.next_at
        limit greatest(room.n, 0)
        for update skip locked
    ) x
    limit $1
), l as (
    update message_live set next_at = now() + make_interval(secs => $5) where id = any (array(select id from c)) returning *
)
select ` + messageBody + `, ` + messageLive + `, ` + noReceipts + `, now()
from l` + bodyOfLive

// Post is a message to be sent to its URL now, in the hands of one until its
// NextAt.
type Post struct{ MessageDetail }

// Lane is what a receiver that does not answer may keep waiting.
func (p *Post) Lane() string { return laneOf(p.CallerID, p.Destination) }

// laneOf is the lane of a message to a URL: those of the same caller to the same
// host.
func laneOf(caller int64, url string) string {
	return strconv.FormatInt(caller, 10) + " " + hostOf(url)
}

// hostOf is the host of a URL, with its port.
func hostOf(address string) string {
	_, rest, _ := strings.Cut(address, "://")
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		rest = rest[:i]
	}
	return rest
}

// ClaimPosts gives up to limit messages that are due for their URLs, each to one
// caller: at most perLane of one lane, those in hand included. One that is not
// settled within lease is due again, as if it had not been sent.
func (db *DB) ClaimPosts(ctx context.Context, limit, perLane int, inHand map[string]int, lease time.Duration) ([]Post, error) {
	var busy []string
	var counts []int32
	for name, n := range inHand {
		busy, counts = append(busy, name), append(counts, int32(n))
	}
	var posts []Post
	rows, err := db.hot.Query(ctx, claimPostsSQL, limit, perLane, busy, counts, lease.Seconds())
	if err == nil {
		err = scanMessages(rows, func(m MessageDetail, _ time.Time) { posts = append(posts, Post{m}) })
	}
	return posts, failed("claim posts", err)
}

// Posted is what came of one post.
type Posted struct {
	Post
	Result msg.Result
}

// SettlePosts keeps what came of posts, and gives when the messages are due
// again that are not at their end.
func (db *DB) SettlePosts(ctx context.Context, posted []Posted) (again []time.Time, err error) {
	if len(posted) == 0 {
		return nil, nil
	}
	err = pgx.BeginFunc(ctx, db.hot, func(tx pgx.Tx) error {
		var locks pgx.Batch
		held := queueMessageLocks(&locks, column(posted, func(p Posted) task.ID { return p.ID })...)
		if err := tx.SendBatch(ctx, &locks).Close(); err != nil {
			return err
		}
		var changes []messageChange
		for _, p := range posted {
			m, err := held.of(p.ID)
			if err != nil {
				return err
			}
			after := m.SettlePost(p.Message, p.Result, held.now, rand.Float64())
			changes = append(changes, messageChange{p.ID, m.Message, after})
			if !after.NextAt.IsZero() {
				again = append(again, after.NextAt)
			}
		}
		var batch pgx.Batch
		queueMessageChanges(&batch, changes)
		return tx.SendBatch(ctx, &batch).Close()
	})
	return again, failed("settle posts", err)
}
