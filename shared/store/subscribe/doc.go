// Package subscribe stores subscribe messages. A message is identified by business type, business id, template type and
// receiver. It has one row, and one task (package tasks) for each send. TaskHooks updates the row in the transaction that
// changes the task. An archived message is restored to the main table when it is sent again.
//
// template_pauses counts consecutive errors by template and caller. The third error pauses the template for that caller.
// provider_tokens has the access tokens that all instances share. An advisory lock allows one instance at a time to fetch
// a token.
//
// # Totals
//
// subscribe_totals counts the messages of each closed UTC day, by caller and type of template. CloseDay writes the
// counts in the transaction that closes the day in task_totals. If a message of a closed day is sent again, or its
// result is corrected, the SQL trigger move_subscribe_total corrects the counts. The SQL trigger inserts rows with 1 or -1,
// so that concurrent changes do not wait for each other. The next CloseDay merges these rows. Archiving or restoring a
// message does not change the totals.
package subscribe
