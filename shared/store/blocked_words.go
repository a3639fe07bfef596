package store

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// blockedFor is how long a list of blocked words may be old: a word added
// through another instance counts here after that time at the latest.
const blockedFor = time.Second

// blockedWords keeps the list of blocked words, read again when it is needed
// and older than blockedFor.
type blockedWords struct {
	mu    sync.Mutex
	words wordList
	read  time.Time
}

// wordList holds folded words.
type wordList []string

const blockedWordsSQL = `select folded from blocked_words order by folded`

func (b *blockedWords) list(ctx context.Context, pool *pgxpool.Pool) (wordList, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.read) < blockedFor {
		return b.words, nil
	}
	rows, err := pool.Query(ctx, blockedWordsSQL)
	if err != nil {
		return nil, err
	}
	words, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	b.words, b.read = words, time.Now()
	return words, nil
}

// forget makes the next use read the list anew.
func (b *blockedWords) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read = time.Time{}
}

// match tells whether text holds a word. The text is folded only when there
// is a list.
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

// fold makes texts that a reader takes for the same equal: NFKC, case-folded.
func fold(text string) string {
	return cases.Fold().String(norm.NFKC.String(text))
}
