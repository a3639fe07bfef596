package messages

// PostSources lists, as source, the callers that have messages to URLs with sends left, due or not, and the earliest due
// time of each: one index probe for each caller.
const PostSources = `
with recursive source (caller_id, next_at) as (
    (select caller_id, next_at from message_live where remaining_sends > 0 and kind = 1 order by caller_id, next_at limit 1)
    union all
    select n.caller_id, n.next_at from source s cross join lateral (
        select m.caller_id, m.next_at from message_live m
        where m.remaining_sends > 0 and m.kind = 1 and m.caller_id > s.caller_id
        order by m.caller_id, m.next_at limit 1
    ) n
)`

// DueStreams lists, as s, each pair of caller and stream that has messages with sends left, due or not, and its earliest
// due time: one index probe for each pair. Messages to URLs (kind 1) are left out: see PostSources.
const DueStreams = `
with recursive s (caller_id, stream, next_at) as (
    (select caller_id, stream, next_at from message_live where remaining_sends > 0 and kind <> 1 order by caller_id, stream, next_at, id limit 1)
    union all
    select n.caller_id, n.stream, n.next_at from s cross join lateral (
        select m.caller_id, m.stream, m.next_at from message_live m
        where m.remaining_sends > 0 and m.kind <> 1 and (m.caller_id, m.stream) > (s.caller_id, s.stream)
        order by m.caller_id, m.stream, m.next_at, m.id limit 1
    ) n
)`
