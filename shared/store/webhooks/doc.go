// Package webhooks stores the endpoints of callers and the deliveries to them.
//
// A row of webhook_endpoints with a URL is an endpoint that a caller has registered. The row without a URL, one for
// each caller, has the caller's own signing secret; the deliveries to callback URLs of tasks belong to this row.
//
// Each event is stored once (webhook_events), with one row of webhook_deliveries for each endpoint. The primary keys
// of both tables prevent duplicates. A claim gives a delivery a lease. The number of claims of a delivery is the
// fence: a failure of an earlier claim is only listed as a try. A success always counts, since the endpoint has the
// event.
//
// ClaimDeliveries claims within messages.InFlightLimits. Accounts take turns; within an account, endpoints and hosts of
// callbacks take turns. A transaction that locks endpoints and deliveries locks the endpoints first.
//
// Recording, claiming and settling serve many callers at once. So they never wait for the lock of an endpoint or
// delivery: they need no lock, or skip locked rows. The function deliver settles skipped deliveries again. Deleting an
// endpoint is a short transaction. It may leave pending deliveries, and others may be recorded at the same time: the
// function sweep marks both as failed.
package webhooks
