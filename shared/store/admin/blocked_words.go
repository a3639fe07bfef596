package admin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// BlockedWord is a row of blocked_words.
type BlockedWord struct {
	ID        int32
	Word      string // as the operator typed it
	CreatedAt time.Time
}

func (w BlockedWord) subject() string { return fmt.Sprintf("blocked_word/%d", w.ID) }

func (w BlockedWord) json() string { return store.MustJSON(map[string]any{"word": w.Word}) }

// maxFoldedBytes limits the length of a folded word, so that it fits into an index row.
const maxFoldedBytes = 1000

const insertBlockedWordSQL = `
insert into blocked_words (word, folded) values ($1, $2)
on conflict (folded) do nothing
returning id, word, created_at`

const sameBlockedWordSQL = `select id, word, created_at from blocked_words where folded = $1`

// AddBlockedWord blocks a word in every form that fold makes equal to it, such as in capitals or with invisible characters
// inside. If the word is already blocked, AddBlockedWord returns the existing row.
func (st *Store) AddBlockedWord(ctx context.Context, word string, by store.Operator) (w BlockedWord, err error) {
	folded := fold(word)
	switch {
	case strings.TrimSpace(folded) == "":
		return w, task.Invalid([]task.Field{{Name: "word", Message: "must contain a visible character"}})
	case len(folded) > maxFoldedBytes:
		return w, task.Invalid([]task.Field{{Name: "word", Message: "is too long once its characters are normalised (NFKC)"}})
	}
	err = st.db.AuditedAsAdmin(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		w, err = store.QueryOne[BlockedWord](ctx, tx, "blocked word", insertBlockedWordSQL, word, folded)
		if task.CodeOf(err) != task.CodeNotFound {
			return store.AuditEntry{Action: "blocked.add", Subject: w.subject(), After: w.json()}, err
		}
		w, err = store.QueryOne[BlockedWord](ctx, tx, "blocked word", sameBlockedWordSQL, folded)
		return store.AuditEntry{}, err
	})
	if task.CodeOf(err) == task.CodeNotFound { // the word was removed between the two statements
		err = store.Busy()
	}
	st.blocked.forgetUnlessFailed(err)
	return w, store.Wrap("add blocked word", err)
}

const deleteBlockedWordSQL = `delete from blocked_words where id = $1 returning id, word, created_at`

// RemoveBlockedWord removes a blocked word and returns it; task.CodeNotFound if there is none.
func (st *Store) RemoveBlockedWord(ctx context.Context, id int32, by store.Operator) (w BlockedWord, err error) {
	err = st.db.AuditedAsAdmin(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		w, err = store.QueryOne[BlockedWord](ctx, tx, "blocked word", deleteBlockedWordSQL, id)
		return store.AuditEntry{Action: "blocked.remove", Subject: w.subject(), Before: w.json()}, err
	})
	st.blocked.forgetUnlessFailed(err)
	return w, store.Wrap("remove blocked word", err)
}

const blockedWordPageSQL = `select id, word, created_at from blocked_words where id > $1::bigint order by id limit $2`

// BlockedWords lists the blocked words by id. after is the last id of the previous page; 0 = the first
// page.
func (st *Store) BlockedWords(ctx context.Context, after int64, limit int) (page []BlockedWord, more bool, err error) {
	page, more, err = store.QueryPage[BlockedWord](ctx, st.db.Read, limit, blockedWordPageSQL, after)
	return page, more, store.Wrap("blocked words", err)
}

// Blocked reports whether a text contains a blocked word.
func (st *Store) Blocked(ctx context.Context, text string) (bool, error) {
	contains, err := st.WordMatcher(ctx)
	return contains(text), store.Wrap("blocked words", err)
}

// WordMatcher returns a function that reports whether a text contains a blocked word. The list of
// words is at most about a second old while the database responds at once. If the database does not respond in time,
// an older list is used (see blockedWaitLimit).
func (st *Store) WordMatcher(ctx context.Context) (contains func(text string) bool, err error) {
	words, err := st.blocked.list(ctx, st.db.Hot)
	return words.match, err
}
