package messages

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// claimPostsSQL claims due messages to URLs: it sets next_at to the end of the lease.
const claimPostsSQL = PostSources +
	// $4 is the limit of a destination, $5 that of an account (InFlightLimits).
	// in_flight: the posts that this process has claimed and not settled. busy_accounts: how many of these each account has.
	`, in_flight as materialized (
    select * from unnest($2::bigint[], $3::text[]) as f (caller_id, destination_key)
), busy_accounts as materialized (
    select coalesce(c.account_id, f.caller_id) as account, count(*) as n from in_flight f left join callers c on c.id = f.caller_id group by account
)` +
	// open: the callers with something due, of accounts below their limit.
	`, open as materialized (
    select s.caller_id, coalesce(c.account_id, s.caller_id) as account, coalesce(b.n, 0) as account_in_flight, ` + store.RandomHash + ` as start
    from source s left join callers c on c.id = s.caller_id left join busy_accounts b on b.account = coalesce(c.account_id, s.caller_id)
    where s.next_at <= now() and coalesce(b.n, 0) < $5
)` +
	// due: for each caller its 64 earliest due posts and, so that no destination hides another one, the $4 earliest due posts
	// to each of 64 of its destinations. If a caller has more destinations, open.start, a random hash, chooses where the 64
	// begin. The condition on one destination is a range, so that the planner uses the index of destinations (message_live_hosts).
	`, due as (
    select o.account, o.account_in_flight, m.id, m.destination_key, m.next_at
    from open o cross join lateral (
        select id, destination_key, next_at from message_live
        where remaining_sends > 0 and kind = 1 and caller_id = o.caller_id and next_at <= now()
        order by next_at limit 64
    ) m
    union
    select o.account, o.account_in_flight, m.id, m.destination_key, m.next_at
    from open o cross join lateral (
        with recursive destinations (hash, key) as (
            select o.start, ''
            union
            select n.hash, n.destination_key from destinations d cross join lateral (
                (select hashtextextended(destination_key, 0) as hash, destination_key from message_live
                where remaining_sends > 0 and kind = 1 and caller_id = o.caller_id and (hashtextextended(destination_key, 0), destination_key) > (d.hash, d.key)
                order by hashtextextended(destination_key, 0), destination_key limit 1)
                union all
                (select hashtextextended(destination_key, 0), destination_key from message_live
                where remaining_sends > 0 and kind = 1 and caller_id = o.caller_id
                order by hashtextextended(destination_key, 0), destination_key limit 1)
                limit 1
            ) n
        )
        select hash, key from destinations where key <> '' limit 64
    ) d cross join lateral (
        select id, destination_key, next_at from message_live
        where remaining_sends > 0 and kind = 1 and caller_id = o.caller_id
            and (hashtextextended(destination_key, 0), destination_key) >= (d.hash, d.key)
            and (hashtextextended(destination_key, 0), destination_key, next_at) <= (d.hash, d.key, now())
        order by hashtextextended(destination_key, 0), destination_key, next_at limit $4
    ) m
)` +
	// by_destination: destination_turn is the position of a due post at its destination. The posts in flight come first,
	// then the due ones, earliest first.
	`, by_destination as (
    select due.*, coalesce(busy.n, 0) + row_number() over (partition by due.destination_key order by due.next_at) as destination_turn
    from due left join (select destination_key, count(*) as n from in_flight group by destination_key) busy on busy.destination_key = due.destination_key
)` +
	// by_account: account_turn is the position of a due post in its account. The posts in flight come first, then the due
	// ones by destination_turn.
	// claimed: the posts with the lowest account_turn, so that the accounts take turns. Locked rows are skipped.
	`, by_account as (
    select id, account_in_flight + row_number() over (partition by account order by destination_turn, random()) as account_turn
    from by_destination where destination_turn <= $4
), claimed as materialized (
    select x.id from (select id from by_account where account_turn <= $5 order by account_turn, random()) p cross join lateral (
        select m.id from message_live m where m.id = p.id and m.remaining_sends > 0 and m.next_at <= now() for update skip locked
    ) x
    limit $1
), l as (
    update message_live set next_at = now() + make_interval(secs => $6) where id = any (array(select id from claimed)) returning *
)
select ` + messageBody + `, ` + messageLive + `, ` + noReceipts + `, now()
from l` + bodyOrNull

// Post is a message to be sent to its URL now. It is leased to one process until its NextAt.
type Post struct{ Detail }

// DestinationKey identifies the caller and host of the post. Posts of one key share a limit
// (InFlightLimits.Destination).
func (p *Post) DestinationKey() string { return destinationKey(p.CallerID, p.Destination) }

// InFlightLimits limits how many posts, or how many webhook deliveries, one process has in flight.
type InFlightLimits struct {
	All         int
	Account     int // for a caller and all callers that it created (callers.account_id) together
	Destination int // for one host of a caller, or one endpoint; a chat robot may have one more
	Failing     int // webhooks only: for all failing endpoints together; one account may use a quarter of this limit
}

// ClaimPosts claims due messages to URLs, up to limits. inFlight are the posts that this process has claimed and
// not settled, at most limits.All: they count towards the limits. A post that is not settled within lease is due again, as
// if it had not been sent.
func (st *Store) ClaimPosts(ctx context.Context, limits InFlightLimits, inFlight []Post, lease time.Duration) (posts []Post, err error) {
	for again := true; again && err == nil && len(posts) == 0; {
		posts, again, err = st.claimPosts(ctx, limits, inFlight, lease)
	}
	return posts, store.Wrap("claim posts", err)
}

// claimPosts claims once. removed reports whether it removed rows of message_live that have no row in messages (see bodiless.go).
func (st *Store) claimPosts(ctx context.Context, limits InFlightLimits, inFlight []Post, lease time.Duration) (posts []Post, removed bool, err error) {
	rows, err := st.db.Hot.Query(ctx, claimPostsSQL, limits.All-len(inFlight),
		store.Column(inFlight, func(p Post) int64 { return p.CallerID }), store.Column(inFlight, func(p Post) string { return p.DestinationKey() }),
		limits.Destination, limits.Account, lease.Seconds())
	if err != nil {
		return nil, false, err
	}
	bodiless, err := scanClaimed(rows, func(m Detail, _ time.Time) { posts = append(posts, Post{m}) })
	if err == nil && bodiless > 0 {
		removed, err = removeBodiless(ctx, st.db.Hot, removeBodilessPostsSQL)
	}
	return posts, removed, err
}

// Posted is a post with its result.
type Posted struct {
	Post
	Result msg.Result
}

// SettledPosts is the result of SettlePosts.
type SettledPosts struct {
	Unsettled []int       // indexes of results that are not stored, because another transaction had locked the messages; settle these posts again
	NextTries []time.Time // when messages are due again
}

// SettlePosts stores the results of posts. The posts are of many callers, so SettlePosts never waits for a message that
// another transaction has locked: it returns the index of the result in Unsettled. It drops the result of a message that
// is archived or no longer exists.
func (st *Store) SettlePosts(ctx context.Context, posted []Posted) (settled SettledPosts, err error) {
	if len(posted) == 0 {
		return settled, nil
	}
	err = pgx.BeginFunc(ctx, st.db.Hot, func(tx pgx.Tx) error {
		var locks pgx.Batch
		locked := queueLocksSkipLocked(&locks, store.Column(posted, func(p Posted) task.ID { return p.ID }))
		if err := tx.SendBatch(ctx, &locks).Close(); err != nil {
			return err
		}
		var changes []messageChange
		indexes := make(map[task.ID]int, len(posted)) // index in changes of each message; a message has two results if an operator made it due again during its post
		for i, p := range posted {
			m, found := locked.byID[p.ID]
			if !found {
				if locked.exist[p.ID] { // another transaction has locked it
					settled.Unsettled = append(settled.Unsettled, i)
				}
				continue
			}
			n, repeated := indexes[p.ID]
			if !repeated {
				n = len(changes)
				indexes[p.ID], changes = n, append(changes, messageChange{p.ID, m.Message, m.Message})
			}
			after := changes[n].after.SettlePost(p.Message, p.Result, locked.now, rand.Float64())
			changes[n].after = after
			if !after.NextAt.IsZero() {
				settled.NextTries = append(settled.NextTries, after.NextAt)
			}
		}
		var batch pgx.Batch
		queueMessageChanges(&batch, changes)
		return tx.SendBatch(ctx, &batch).Close()
	})
	return settled, store.Wrap("settle posts", err)
}
