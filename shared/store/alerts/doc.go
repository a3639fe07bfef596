// Package alerts raises, clears and lists alerts of queues and streams.
//
// An alert is one row while a threshold is exceeded. The partial unique index alerts_open
// allows one open alert for each subject, so any number of instances may check. A check reads in
// a snapshot of the read role; what the domain decides is written under a lock, together with
// its event. An alert that another check raised and cleared since the snapshot is not
// raised again.
//
// Checks are not run by a timer: a failure that counts, a task that became pending, and an open
// alert make sweep check (OnFailed). The events go to admins.
package alerts
