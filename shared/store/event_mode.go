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

// Decode reads none, final or all, as a setting.
func (m *EventMode) Decode(text string) error {
	i := slices.Index([]string{"none", "final", "all"}, text)
	if i < 0 {
		return errors.New("must be none, final or all")
	}
	*m = EventMode(i)
	return nil
}

// Pick returns withEvents, the statement that also writes events, if the mode publishes every
// change. Otherwise it returns plain, which takes less time to plan.
func (m EventMode) Pick(plain, withEvents string) string {
	if m == AllEvents {
		return withEvents
	}
	return plain
}
