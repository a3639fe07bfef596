package store

import (
	"errors"
	"slices"
)

// EventMode selects which changes of tasks are published as events.
type EventMode int8

// The modes.
const (
	NoEvents    EventMode = iota
	FinalEvents           // succeeded and failed
	AllEvents             // every change of state
)

// Decode reads the mode from the text of a setting: none, final or all.
func (m *EventMode) Decode(text string) error {
	i := slices.Index([]string{"none", "final", "all"}, text)
	if i < 0 {
		return errors.New("must be none, final or all")
	}
	*m = EventMode(i)
	return nil
}

// Pick returns one of two statements. If the mode publishes every change, Pick returns withEvents, which also writes
// events. Otherwise it returns plain, which takes less time to plan.
func (m EventMode) Pick(plain, withEvents string) string {
	if m == AllEvents {
		return withEvents
	}
	return plain
}
