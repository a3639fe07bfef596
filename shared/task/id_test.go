package task

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNewID(t *testing.T) {
	t.Parallel()

	t.Run("is version 7 of the RFC 9562 variant", func(t *testing.T) {
		t.Parallel()
		for range 100 {
			text := NewID().String()
			require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, text)
		}
	})

	t.Run("is strictly increasing in each goroutine and unique among all", func(t *testing.T) {
		t.Parallel()
		const goroutines, each = 8, 5000
		ids := make([][]ID, goroutines)
		var all sync.WaitGroup
		for i := range ids {
			all.Go(func() {
				for range each {
					ids[i] = append(ids[i], NewID())
				}
			})
		}
		all.Wait()
		seen := make(map[ID]bool, goroutines*each)
		for _, own := range ids {
			for i, id := range own {
				require.False(t, i > 0 && own[i-1].Compare(id) >= 0, "%s is not after the id before it", id)
				seen[id] = true
			}
		}
		require.Len(t, seen, goroutines*each)
	})

	t.Run("has its creation time", func(t *testing.T) {
		t.Parallel()
		before := time.Now()
		created := NewID().Time()
		require.Equal(t, time.UTC, created.Location())
		// NewID may run ahead of the clock while other tests call it often.
		require.WithinRange(t, created, before.Add(-time.Microsecond), time.Now().Add(time.Second))
	})
}

func TestNewIDAfterClockStepsBack(t *testing.T) {
	t.Parallel()
	ahead := nextTick(tickOf(time.Now()))
	require.Greater(t, nextTick(ahead-ticksPerMilli), ahead)
	require.Greater(t, nextTick(ahead), ahead)
}

func TestIDFloor(t *testing.T) {
	t.Parallel()

	t.Run("has the fields of the RFC 9562 layout", func(t *testing.T) {
		t.Parallel()
		// The instant of RFC 9562 appendix A.6, and half a millisecond later.
		at := time.UnixMilli(0x017F22E279B0)
		require.Equal(t, "017f22e2-79b0-7000-8000-000000000000", IDFloor(at).String())
		require.Equal(t, "017f22e2-79b0-7800-8000-000000000000", IDFloor(at.Add(500*time.Microsecond)).String())
		require.Equal(t, "017f22e2-79b0-7fff-8000-000000000000", IDFloor(at.Add(time.Millisecond-1)).String())
	})

	t.Run("is at most every id created later", func(t *testing.T) {
		t.Parallel()
		for range 1000 {
			now := time.Now()
			require.Negative(t, IDFloor(now).Compare(NewID()))
		}
	})

	t.Run("of an id's time is the floor of the same tick", func(t *testing.T) {
		t.Parallel()
		for range 1000 {
			id := NewID()
			floor := IDFloor(id.Time())
			require.Equal(t, id[:8], floor[:8])
			require.LessOrEqual(t, floor.Compare(id), 0)
		}
	})

	t.Run("limits the time to 1970 through 10889", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, "00000000-0000-7000-8000-000000000000", IDFloor(time.Time{}).String())
		require.Equal(t, "00000000-0000-7000-8000-000000000000", IDFloor(time.Unix(0, -1)).String())
		require.Equal(t, "ffffffff-ffff-7fff-8000-000000000000", IDFloor(time.Date(10890, 1, 1, 0, 0, 0, 0, time.UTC)).String())
	})
}

func TestParseID(t *testing.T) {
	t.Parallel()
	const text = "0190163d-8694-739b-aea5-966c26f8ad91"

	t.Run("reads what String returns, in either case", func(t *testing.T) {
		t.Parallel()
		id, err := ParseID(text)
		require.NoError(t, err)
		require.Equal(t, text, id.String())
		upper, err := ParseID(strings.ToUpper(text))
		require.NoError(t, err)
		require.Equal(t, id, upper)
	})

	t.Run("refuses every other form", func(t *testing.T) {
		t.Parallel()
		for _, s := range []string{
			"", "1", text[:35], text + "0", " " + text[1:], text + "\n", "{" + text + "}", "urn:uuid:" + text,
			strings.ReplaceAll(text, "-", ""), strings.ReplaceAll(text, "-", "_"), "g" + text[1:],
			"0190163d8-694-739b-aea5-966c26f8ad91", "0190163d-8694-739b-aea5-966c26f8ad9é",
		} {
			id, err := ParseID(s)
			require.ErrorContains(t, err, "not a UUID", "%q", s)
			require.True(t, id.IsZero())
		}
	})
}

func TestIDJSON(t *testing.T) {
	t.Parallel()
	id := NewID()

	encoded, err := json.Marshal(map[ID]ID{id: id})
	require.NoError(t, err)
	require.JSONEq(t, `{"`+id.String()+`":"`+id.String()+`"}`, string(encoded))

	var decoded map[ID]ID
	require.NoError(t, json.Unmarshal(encoded, &decoded))
	require.Equal(t, map[ID]ID{id: id}, decoded)

	kept := id
	require.ErrorContains(t, json.Unmarshal([]byte(`"nonsense"`), &kept), "not a UUID")
	require.Equal(t, id, kept)
}

func TestIDIsZero(t *testing.T) {
	t.Parallel()
	require.True(t, ID{}.IsZero())
	require.False(t, NewID().IsZero())
	require.False(t, IDFloor(time.Time{}).IsZero())
}

func FuzzParseID(f *testing.F) {
	f.Add("0190163d-8694-739b-aea5-966c26f8ad91")
	f.Add("0190163D-8694-739B-AEA5-966C26F8AD91")
	f.Add("not an id")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseID(s)
		if err == nil {
			require.Equal(t, strings.ToLower(s), id.String())
		}
	})
}
