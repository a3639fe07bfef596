// Package subscribe stores subscribe messages. A message is identified by business type, business id, template type and
// receiver. It has one row of subscribe_message_logs, and one task (package tasks) for each send. TaskHooks updates the
// row in the transaction that changes the task. An archived message is restored to the main table when it is sent again.
//
// template_pauses counts consecutive errors by template and caller. The third consecutive error pauses the template for
// that caller. provider_tokens has the access tokens that all instances share. An advisory lock allows one instance at a
// time to fetch the token of an app.
//
// # Totals
//
// subscribe_totals counts the messages of each UTC day, by caller and type of template, up to the time to which
// task_totals counts. Callers choose the types, so there may be very many: subscribe_totals has at most 1000 types of a
// day and caller, and counts the messages of all other types under the empty type. CountPart writes
// the counts of a part of a day in the transaction that counts the part in task_totals. If a counted message is sent
// again, or its result is corrected, the SQL trigger move_subscribe_total inserts rows with 1 or -1 into
// subscribe_total_changes, so that concurrent changes do not wait for each other. MergeTotals moves these rows to
// subscribe_totals. Until then, these rows have the type of the message, even if the message was counted under the empty
// type. Archiving or restoring a message does not change the totals.
package subscribe
