package store

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/task"
)

// claimPostsSQL takes what is due for URLs, earliest first. An HTTP call may
// take longer than a lock should be held: the next send time is the lease.
const claimPostsSQL = `
with c as materialized (
    select id from message_live
    where next_at <= now() and remaining_sends > 0 and kind = 1
    order by next_at, id
    limit $1
    for update skip locked
), l as (
    update message_live set next_at = now() + make_interval(secs => $2) where id = any (array(select id from c)) returning *
)
select ` + messageBody + `, ` + messageLive + `, ` + noReceipts + `, now()
from l` + bodyOfLive

// Post is a message to be sent to its URL now, in the hands of one until its
// NextAt.
type Post struct{ MessageDetail }

// ClaimPosts gives up to limit messages that are due for their URLs, earliest
// first, each to one caller. One that is not settled within lease is due again,
// as if it had not been sent.
func (db *DB) ClaimPosts(ctx context.Context, limit int, lease time.Duration) ([]Post, error) {
	var posts []Post
	rows, err := db.hot.Query(ctx, claimPostsSQL, limit, lease.Seconds())
	if err == nil {
		err = scanMessages(rows, func(m MessageDetail, _ time.Time) { posts = append(posts, Post{m}) })
	}
	return posts, failed("claim posts", err)
}

const postponePostsSQL = `
update message_live l set next_at = now() + make_interval(secs => $3)
from unnest($1::uuid[], $2::timestamptz[]) as t (id, next_at)
where l.id = t.id and l.next_at = t.next_at`

// PostponePosts gives claimed messages back, to be due after a pause.
func (db *DB) PostponePosts(ctx context.Context, posts []Post, pause time.Duration) error {
	if len(posts) == 0 {
		return nil
	}
	_, err := db.hot.Exec(ctx, postponePostsSQL, column(posts, func(p Post) task.ID { return p.ID }),
		column(posts, func(p Post) time.Time { return p.NextAt }), pause.Seconds())
	return failed("postpone posts", err)
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
