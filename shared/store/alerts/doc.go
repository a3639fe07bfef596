// Package alerts raises, clears and lists alerts of queues and streams.
//
// A row of the table alerts is one incident: it is open from the check that finds a value above its threshold until a check
// finds the value well below the threshold (task.AlertRules). The partial unique index alerts_open allows one open alert for
// each kind and queue or stream, so any number of instances may check. A check of queues reads in one snapshot with the read
// role. Package task decides; the change is written under a lock, together with its event. An alert
// that another check raised and cleared since the snapshot is not raised again.
//
// No timer runs the checks. sweep checks the queues each time that it runs, but not too often (Store.Check). For a
// check, sweep is woken after a failure that counts, after a task became pending, and as long as Check returns again = true.
// deliver checks the streams before it trims them.
// The events go to the webhook endpoints of admins who are not limited to queues.
package alerts
