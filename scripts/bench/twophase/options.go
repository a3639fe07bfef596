package main

import "time"

type options struct {
	rounds      int
	duration    time.Duration // of each phase
	connections []int
	stall       time.Duration // of the database, in each round
	backlog     int           // accepted messages that wait at the start of each measurement of saving
	shards      int           // TWO_PHASE_SHARDS
	batch       int           // TWO_PHASE_BATCH_SIZE
}
