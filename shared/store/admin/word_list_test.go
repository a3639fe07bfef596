package admin_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store/storetest"
)

// A blocked word is found in a text that has invisible characters inside the word. A word that was stored with
// invisible characters is found too. A stored word without a visible character matches no text.
func TestInvisibleCharactersHideNoBlockedWord(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	blocked := func(text string) bool {
		t.Helper()
		found, err := db.Admin.Blocked(t.Context(), text)
		require.NoError(t, err)
		return found
	}
	db.Exec(t, `insert into blocked_words (word, folded) values ('old', E'lot\u200btery'), ('nothing', E'\u200b'), ('space', E' \u200b')`)
	_, err := db.Admin.AddBlockedWord(t.Context(), "赌博", storetest.Tester)
	require.NoError(t, err)
	_, err = db.Admin.AddBlockedWord(t.Context(), "ca\u00adsino", storetest.Tester)
	require.NoError(t, err)
	for _, hidden := range []string{
		"\u00ad", "\u034f", "\u061c", "\u115f", "\u1160", "\u180b", "\u200b", "\u200d", "\u202e", "\u2060", "\u2063", "\u3164", "\ufe0f", "\ufeff", "\uffa0",
		"\U0001d173", "\U000e0041", "\U000e0101", "\x01", "\x7f", "\u200b\ufe0f\u2060",
	} {
		require.True(t, blocked(fmt.Sprintf("去赌%s博吧", hidden)), "%+q", hidden)
		require.True(t, blocked(fmt.Sprintf("a CA%sSINO", hidden)), "%+q", hidden)
		require.True(t, blocked(fmt.Sprintf("Lot%stery", hidden)), "%+q", hidden)
	}
	for _, other := range []string{"赌 博", "ca\nsino", "❤️ 博", "lot of tea", "", "cas\u0600ino", "Lot\u0301tery"} {
		require.False(t, blocked(other), "%+q", other)
	}
}

func TestInstanceThatWasIdleWaitsForTheNewestBlockedWords(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	_, err := db.Admin.Blocked(t.Context(), "hi")
	require.NoError(t, err)
	db.Exec(t, `insert into blocked_words (word, folded) values ('casino', 'casino')`) // as another instance does
	db.Admin.MakeBlockedWordsIdle()
	release := db.HoldLock(t, "lock table blocked_words in access exclusive mode")
	result := make(chan bool)
	go func() {
		blocked, err := db.Admin.Blocked(t.Context(), "a casino")
		assert.NoError(t, err)
		result <- blocked
	}()
	select {
	case <-result:
		require.Fail(t, "the old list was used")
	case <-time.After(200 * time.Millisecond): // after blockedWaitLimit, a call of an instance that was not idle uses the old list
	}
	release()
	require.True(t, <-result)
}

// If a change of the words fails, its process keeps the list: the same process may check texts while the database is unavailable.
func TestFailedChangeKeepsTheListOfBlockedWords(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `insert into blocked_words (word, folded) values ('casino', 'casino')`)
	_, err := db.Admin.Blocked(t.Context(), "hi")
	require.NoError(t, err)
	db.Exec(t, `do $$ begin execute format('revoke connect on database %I from public, sendonce_hot, sendonce_admin', current_database()); end $$`)
	db.Hot.Reset() // from now on, no connection to the database can be made
	_, err = db.Admin.AddBlockedWord(t.Context(), "lottery", storetest.Tester)
	require.Error(t, err)
	found, err := db.Admin.Blocked(t.Context(), "a casino")
	require.NoError(t, err)
	require.True(t, found)
}
