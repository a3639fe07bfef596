// Package webhooks stores the endpoints of callers and the deliveries to them.
//
// Each event is kept once (webhook_events), with one row of webhook_deliveries for each
// endpoint; the key removes duplicates. A delivery is claimed for a lease, and
// its number of claims is the fence: a result of an earlier claim changes nothing.
//
// Deliveries are taken from each account, and each endpoint or host of a caller, in turn, within
// messages.InFlightLimits. Transactions that lock both lock endpoints first and then
// deliveries.
//
// Recording, claiming and settling serve many callers at once, so they wait for no lock of an
// endpoint or delivery: they need none, or skip locked rows, which the function deliver settles
// again. Deleting an endpoint is a short transaction. The function sweep ends the deliveries that
// it leaves pending, and those that are recorded at the same time.
package webhooks
