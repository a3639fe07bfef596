package main

import (
	"sync/atomic"

	"github.com/sendonce/sendonce/scripts/bench"
	"github.com/sendonce/sendonce/shared/sandbox/load"
)

// twoPhase submits messages and records the acknowledged ones.
type twoPhase struct {
	*bench.Stack
	o       options
	ledger  *load.Ledger
	senders atomic.Int64 // number of the newest sender
}
