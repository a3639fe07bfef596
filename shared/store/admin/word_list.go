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
	// blockedMaxAge is how old a list of blocked words may be: a word that was added
	// through another instance is used here after that time at the latest, as long as
	// the database is available.
	blockedMaxAge = time.Second
	// blockedWaitLimit is how long a call waits for a newer list before it uses the old
	// one, so that an unavailable database does not delay messages that are accepted
	// without it.
	blockedWaitLimit = 50 * time.Millisecond
	blockedTimeout   = 5 * time.Second
)

// blockedWords caches the list of blocked words. It is read again when it is used and
// older than blockedMaxAge.
type blockedWords struct {
	mu      sync.Mutex
	words   wordList
	read    time.Time // zero = there is no list
	reading *wordReading
}

// wordReading is one query of the list. Its result is set once done is closed.
type wordReading struct {
	began time.Time
	done  chan struct{}
	words wordList
	err   error
}

// wordList has folded words.
type wordList []string

const blockedWordsSQL = `select folded from blocked_words`

func (b *blockedWords) list(ctx context.Context, from *pgxpool.Pool) (wordList, error) {
	b.mu.Lock()
	words, known := b.words, !b.read.IsZero()
	if time.Since(b.read) < blockedMaxAge {
		b.mu.Unlock()
		return words, nil
	}
	r := b.reading
	if r == nil {
		r = &wordReading{began: time.Now(), done: make(chan struct{})}
		b.reading = r
		// Other calls wait for this list too, so the query outlives the call that began it.
		go b.renew(store.WithoutCaller(context.WithoutCancel(ctx)), from, r)
	}
	b.mu.Unlock()

	var timeout <-chan time.Time
	if known {
		timer := time.NewTimer(time.Until(r.began.Add(blockedWaitLimit)))
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-r.done:
	case <-timeout:
		return words, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if r.err != nil && !known {
		return nil, r.err
	}
	return r.words, nil
}

func (b *blockedWords) renew(ctx context.Context, from *pgxpool.Pool, r *wordReading) {
	ctx, cancel := context.WithTimeout(ctx, blockedTimeout)
	defer cancel()
	rows, err := from.Query(ctx, blockedWordsSQL, store.Unprepared)
	if err == nil {
		r.words, err = pgx.CollectRows(rows, foldedWord)
		r.words = slices.DeleteFunc(r.words, func(word string) bool { return strings.TrimSpace(word) == "" }) // it would match every text
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.err = err; err != nil {
		r.words = b.words // the old list stays in use
	}
	if b.reading == r {
		b.reading = nil
		if err == nil {
			b.words, b.read = r.words, time.Now()
		}
	}
	close(r.done)
}

// foldedWord folds a row again: it may have been stored by a version whose fold kept more characters.
func foldedWord(row pgx.CollectableRow) (string, error) {
	word, err := pgx.RowTo[string](row)
	return fold(word), err
}

// forget makes the next use read the list again.
func (b *blockedWords) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read, b.reading = time.Time{}, nil // a list that is being read may be older than the change
}

// match reports whether text contains a word. It folds the text only if there are words.
func (w wordList) match(text string) bool {
	if len(w) == 0 {
		return false
	}
	folded := fold(text)
	for _, word := range w {
		if strings.Contains(folded, word) {
			return true
		}
	}
	return false
}

// fold makes texts equal that look the same to a reader: NFKC, case-folded, and without
// invisible characters.
func fold(text string) string {
	shown := strings.Map(func(r rune) rune {
		if invisible(r) {
			return -1
		}
		return r
	}, text)
	return cases.Fold().String(norm.NFKC.String(shown))
}

// invisible reports control characters other than white space, and what Unicode calls
// default ignorable: zero-width spaces, soft hyphens, variation selectors, fillers.
func invisible(r rune) bool {
	if r < unicode.MaxASCII {
		return r < ' ' && !unicode.IsSpace(r)
	}
	return unicode.IsControl(r) && !unicode.IsSpace(r) ||
		unicode.In(r, unicode.Cf, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point) && !unicode.Is(unicode.Prepended_Concatenation_Mark, r)
}
