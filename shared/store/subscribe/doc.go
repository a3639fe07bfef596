// Package subscribe stores subscribe messages. Each message has at most one row, named by
// business, type of template and receiver, and one task (package tasks) for each time it is
// sent. TaskHooks keeps the row equal to its task, in the same commit.
//
// template_pauses counts consecutive errors by template and caller, and pauses a template that
// fails too often. provider_tokens has the access tokens that all instances share; one
// instance at a time fetches a token, under an advisory lock.
//
// # Totals
//
// subscribe_totals has the messages of each closed UTC day, by caller and type of template.
// CloseDay writes them in the transaction that closes the day in task_totals. A message that
// is sent again leaves its closed day: the trigger move_subscribe_total moves it. The trigger
// fires for rows of earlier days only, and inserts rows instead of updating them, so two
// changes never wait for each other. Inserts and deletes move nothing: an archived message
// stays counted, and one that comes back from the archive is inserted unchanged first.
//
// A message that failed and was archived returns to the main table when it is sent again.
package subscribe
