// Package webhooks stores the endpoints of callers and the deliveries to them.
//
// Each event is stored once (webhook_events), with one row of webhook_deliveries for each
// endpoint; their primary keys remove duplicates. A delivery is claimed for a lease, and its number
// of claims is the fence: a failure of an earlier claim changes nothing. A success always counts,
// since the endpoint has the event.
//
// Deliveries are taken from each account, and each endpoint or host of a caller, in turn, within
// messages.InFlightLimits. Transactions that lock both lock endpoints first and then
// deliveries.
//
// Recording, claiming and settling serve many callers at once, so they wait for no lock of an
// endpoint or delivery: they need none, or skip locked rows. The function deliver settles skipped
// deliveries again. Deleting an endpoint is a short transaction. The function sweep fails the
// deliveries that it leaves pending, and those that are recorded at the same time.
package webhooks
