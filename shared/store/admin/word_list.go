package admin

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	"github.com/sendonce/sendonce/shared/store"
)

const (
	// blockedMaxAge is how old a list of blocked words may be while the database is available. So a word that was added
	// through another instance is blocked after this time.
	blockedMaxAge = time.Second
	// blockedWaitLimit is how long a call waits for a newer list before it uses the old list, so that an unavailable
	// database does not delay messages that are accepted without the database. An instance that has checked no text for
	// blockedIdle waits for up to blockedIdleWaitLimit: many words may have been added since.
	blockedWaitLimit     = 50 * time.Millisecond
	blockedIdleWaitLimit = 2 * time.Second
	blockedIdle          = 10 * time.Second
	// blockedTimeout limits the query of a list.
	blockedTimeout = 5 * time.Second
)

// blockedWords caches the list of blocked words. If the list is older than blockedMaxAge, its next use
// queries a new list.
type blockedWords struct {
	mu      sync.Mutex
	words   wordList
	readAt  time.Time // when the query of words ended; zero = words must not be used: there is no list, or it has changed
	triedAt time.Time // when the last query ended, successfully or not
	query   *wordQuery
}

// wordQuery is one query of the list. words and err are set when done is closed.
type wordQuery struct {
	useOldAt time.Time // from then on, calls that have an old list use it
	done     chan struct{}
	words    wordList
	err      error
}

// wordList has folded words.
type wordList []string

const blockedWordsSQL = `select folded from blocked_words`

func (b *blockedWords) list(ctx context.Context, pool *pgxpool.Pool) (wordList, error) {
	b.mu.Lock()
	words, usable := b.words, !b.readAt.IsZero()
	if time.Since(b.readAt) < blockedMaxAge {
		b.mu.Unlock()
		return words, nil
	}
	q := b.query
	if q == nil {
		limit := blockedWaitLimit
		if time.Since(b.triedAt) > blockedIdle {
			limit = blockedIdleWaitLimit
		}
		q = &wordQuery{useOldAt: time.Now().Add(limit), done: make(chan struct{})}
		b.query = q
		// Other calls wait for this list too, so the query continues after the call that began it.
		go b.runQuery(store.WithoutCaller(context.WithoutCancel(ctx)), pool, q)
	}
	b.mu.Unlock()

	var timeout <-chan time.Time
	if usable {
		timer := time.NewTimer(time.Until(q.useOldAt))
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-q.done:
	case <-timeout:
		return words, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if q.err != nil && !usable {
		return nil, q.err
	}
	return q.words, nil
}

func (b *blockedWords) runQuery(ctx context.Context, pool *pgxpool.Pool, q *wordQuery) {
	ctx, cancel := context.WithTimeout(ctx, blockedTimeout)
	defer cancel()
	words, err := store.QueryRows(ctx, pool, foldedWord, blockedWordsSQL, store.Unprepared)
	q.words = slices.DeleteFunc(words, func(word string) bool { return strings.TrimSpace(word) == "" }) // a blank word would match almost every text
	b.mu.Lock()
	defer b.mu.Unlock()
	b.triedAt = time.Now()
	if q.err = err; err != nil {
		q.words = b.words // calls that have an old list use it
	}
	if b.query == q {
		b.query = nil
		if err == nil {
			b.words, b.readAt = q.words, time.Now()
		}
	}
	close(q.done)
}

// foldedWord reads a folded word and folds it again: an earlier version may have stored it with characters that fold
// removes now.
func foldedWord(row pgx.CollectableRow) (string, error) {
	word, err := pgx.RowTo[string](row)
	return fold(word), err
}

// forgetUnlessFailed makes the next use query a new list, unless err means that a change of the words certainly failed.
func (b *blockedWords) forgetUnlessFailed(err error) {
	if err != nil && !store.MayHaveCommitted(err) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.readAt, b.query = time.Time{}, nil // the list of a query under way may be older than the change
}

// match reports whether text contains a word of the list.
func (w wordList) match(text string) bool {
	if len(w) == 0 {
		return false
	}
	folded := fold(text)
	return slices.ContainsFunc(w, func(word string) bool { return strings.Contains(folded, word) })
}

// fold makes texts equal that look the same to a reader: NFKC, case-folded, and without
// invisible characters.
func fold(text string) string {
	visible := strings.Map(func(r rune) rune {
		if invisible(r) {
			return -1
		}
		return r
	}, text)
	return cases.Fold().String(norm.NFKC.String(visible))
}

// invisible reports whether r is a control character other than white space, or default ignorable in
// Unicode: a zero-width space, soft hyphen, variation selector or filler.
func invisible(r rune) bool {
	if r < unicode.MaxASCII {
		return r < ' ' && !unicode.IsSpace(r)
	}
	return unicode.IsControl(r) && !unicode.IsSpace(r) ||
		unicode.In(r, unicode.Cf, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point) && !unicode.Is(unicode.Prepended_Concatenation_Mark, r)
}
