package messages

import (
	"context"
	"fmt"
	"maps"
	"slices"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/store/quota"
	"github.com/sendonce/sendonce/shared/task"
)

// countMessagesSQL counts the waiting messages of the callers of an account (see Caller.Account), at most $2
// rows of each caller in each of three indexes. It also returns a sequence number of the stream of accepted
// messages, the highest that is saved or checked: the quota assumes that no message up to it is still to be saved. The bytes
// of a message to a stream count once for each send, because the stream stores a copy each time.
const countMessagesSQL = `
with c as materialized (
    select $1::bigint as id union select id from callers where account_id = $1
), w as (
    select m.bytes from c cross join lateral (
        (select bytes::bigint * greatest(send_no, 1) as bytes from message_live where remaining_sends > 0 and kind <> 1 and caller_id = c.id limit $2)
        union all
        (select bytes from message_live where remaining_sends > 0 and kind = 1 and caller_id = c.id limit $2)
        union all
        (select bytes::bigint * case kind when 1 then 1 else greatest(send_no, 1) end from message_live where remaining_sends = 0 and caller_id = c.id limit $2)
    ) m
)
select count(*), coalesce(sum(bytes), 0)::bigint, greatest(
    (select accept_seq from accepted_messages where accept_seq is not null order by accept_seq desc limit 1),
    (select accept_seq from accepted_checked), 0)
from w`

// sharesExceededSQL returns the accounts (see Caller.Account) that use more than their share of a stream. There
// are shares only while the messages of the last 15 minutes take more than half of the stream. Then the share of
// an account is a quarter of the stream. A stream of size 0 has no limit.
const sharesExceededSQL = `
select stream, caller_id from (
    select stream, coalesce(c.account_id, caller_id) as caller_id, sum(bytes) as own, sum(sum(bytes)) over (partition by stream) as total
    from stream_usage left join callers c on c.id = caller_id where since > now() - interval '15 minutes' and since <= now() group by 1, 2
) u join unnest($1::text[], $2::bigint[]) as s (stream, size) using (stream)
where size > 0 and total > size / 2 and own > size / 4`

// sentToUserSQL counts, up to $3 of each, the messages that $1 sent to the user $2 within the last 15 minutes: the saved ones,
// and the accepted ones that were rejected or are repeats (inbox_unsaved, which counts by minute, hence 16 minutes). If $1 is the name of an account (see Caller.QuotaName), the messages of the other callers of the account count too.
const (
	sentToUserSQL = `
select (
    select count(*) from (
        select from messages where kind = 2 and sender in (` + sendersSQL + `)
        and destination = $2 and created_at > now() - interval '15 minutes' limit $3
    ) m
) + (
    select least(coalesce(sum(messages), 0), $3)::bigint from inbox_unsaved
    where user_name = $2 and sender in (` + sendersSQL + `) and since > now() - interval '16 minutes' and since <= now()
)`

	sendersSQL = `
            select $1::text union select c.name from callers c join callers a on a.id = c.account_id where a.name::text = $1
        `
)

// Admission is a message that Admit has counted before it is saved or accepted: in the quota of its account and, if it is
// addressed to a user, in the sender's share of the inbox. End must follow in any case: it removes the message from the counts, unless
// Saved or Accepted was called before.
type Admission struct {
	quota.Admission
	inbox *inboxReservation // nil unless the message is addressed to a user and the inbox has a limit
}

// Saved records that the message was just committed. Do not call Saved for a replay.
func (a Admission) Saved() {
	a.inbox.keep()
	a.Admission.Saved()
}

// Accepted records that a stream stored the message with this sequence number. Do not call Accepted for a
// duplicate.
func (a Admission) Accepted(seq int64) {
	a.inbox.keep()
	a.Admission.Accepted(seq)
}

func (a Admission) End() {
	a.inbox.release()
	a.Admission.End()
}

// Admit counts a message of a caller before it is saved or, if accepted is true, before a stream accepts it. It refuses
// the message (task.CodeQuota) if the account of the caller would exceed its quota of waiting messages, has used more than
// its share of a stream, or has sent a quarter of an inbox to this user within 15 minutes, or too many accepted messages to this
// user in this second. Only the last two refusals name a field ("to"): the caller may still send to other users. If Admit
// refuses, the caller of Admit must still look for a saved message with the same id, because a replay must succeed.
//
// While messages are submitted, the waiting messages in the database are counted about every second, every 10 s if they
// are below a tenth of the quota, and less often if counting takes more than 50 ms. An account can exceed its quota by the
// messages that other processes accept after the count, but not by messages of one process.
func (st *Store) Admit(ctx context.Context, caller callers.Caller, m *Submission, accepted bool) (Admission, *task.Error) {
	if caller.ID == 0 { // the built-in admin
		return Admission{}, nil
	}
	limit := st.quotas.ByDefault
	if caller.MaxWaitingMessages != nil {
		limit.Items = *caller.MaxWaitingMessages
	}
	if caller.MaxWaitingBytes != nil {
		limit.Bytes = *caller.MaxWaitingBytes
	}
	streams := []string{m.To.Stream()}
	if accepted {
		streams = append(streams, StreamAccepted)
	}
	if st.shares.exceeded(caller.Account(), streams) {
		return Admission{}, quota.Refuse(shareRetry,
			"too much of what was sent within the last 15 minutes came from this caller: messages are accepted again as the earlier ones get older")
	}
	var inbox *inboxReservation
	if m.To.Kind == msg.User && st.inboxes.limit > 0 {
		sender := m.From
		if sender == caller.Name {
			sender = caller.QuotaName()
		}
		var burst bool
		if inbox, burst = st.inboxes.admit(inboxPair{sender, m.To.Name}, accepted); inbox == nil {
			return Admission{}, st.inboxes.refuse(m.From, burst)
		}
	}
	if limit == (quota.Waiting{}) {
		return Admission{inbox: inbox}, nil
	}
	st.quotas.AwaitFirstCount(ctx, caller.Account(), limit)
	admission, waiting := st.quotas.Admit(ctx, caller.Account(), limit, quota.Waiting{Items: 1, Bytes: int64(len(m.Data))}, 1)
	if admission.Items() == 0 {
		inbox.release()
		return Admission{}, quota.Refuse(quota.RetryAfter, fmt.Sprintf("this caller has %d messages with %d bytes waiting to be delivered or confirmed, and may have %s: "+
			"messages are accepted again when some of these are delivered, confirmed or abandoned", waiting.Items, waiting.Bytes, limit))
	}
	return Admission{admission, inbox}, nil
}

// countMessages is the count function of the quotas of messages.
func (st *Store) countMessages(ctx context.Context, caller, rows int64) (waiting map[int64]quota.Waiting, savedTo int64, err error) {
	var w quota.Waiting
	err = st.db.Hot.QueryRow(ctx, countMessagesSQL, store.Unprepared, caller, rows).Scan(&w.Items, &w.Bytes, &savedTo)
	return map[int64]quota.Waiting{caller: w}, savedTo, store.Wrap("count waiting messages", err)
}

// sharesExceeded queries the accounts that use more than their share of streams with these sizes in bytes.
func (st *Store) sharesExceeded(ctx context.Context, sizes map[string]int64) (over map[usageKey]bool, err error) {
	if len(sizes) == 0 {
		return nil, nil
	}
	streams := slices.Collect(maps.Keys(sizes))
	bytes := store.Column(streams, func(name string) int64 { return sizes[name] })
	over = map[usageKey]bool{}
	var key usageKey
	err = store.QueryEach(ctx, st.db.Hot, sharesExceededSQL, []any{store.Unprepared, streams, bytes}, []any{&key.stream, &key.caller}, func() {
		over[key] = true
	})
	return over, err
}

// sentToUser is the countSent function of the inboxShares.
func (st *Store) sentToUser(ctx context.Context, pair inboxPair) (n int, err error) {
	err = st.db.Hot.QueryRow(ctx, sentToUserSQL, store.Unprepared, pair.sender, pair.user, 2*st.inboxes.limit).Scan(&n)
	return n, err
}
