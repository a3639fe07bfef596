// Package alerts raises, clears and lists alerts of queues and streams.
//
// An alert is one row while a threshold is exceeded. The partial unique index alerts_open
// allows one open alert for each subject, so any number of instances may check. A check reads in
// one snapshot with the read role. Package task decides; the change is written under a lock,
// together with its event. An alert that another check raised and cleared since the snapshot is not
// raised again.
//
// No timer runs the checks: sweep checks after a failure that counts, after a task became pending,
// and while an alert is open (OnFailed). The events go to admins.
package alerts
