// Package alerts raises, clears and lists alerts of queues and streams.
//
// A row is one incident: it is open from when the value exceeds a threshold until the value is well
// below the threshold. The partial unique index alerts_open allows one open alert for each kind and
// queue or stream, so any number of instances may check. A check reads in one snapshot with the read
// role. Package task decides; the change is written under a lock, together with its event. An alert
// that another check raised and cleared since the snapshot is not raised again.
//
// No timer runs the checks. sweep checks the queues after a failure that counts, after a task
// became pending, and while an alert is open. deliver checks the streams before it trims them.
// The events go to the webhook endpoints of admins who are not limited to queues.
package alerts
