package main

import "time"

type options struct {
	connections int
	rounds      int
	duration    time.Duration // of a measurement of claims; a measurement of processes lasts a tenth of this
	rate        float64       // of tasks per second while claims are measured
	rows        int           // number of finished tasks
	pin         time.Duration // of the measurement of claims beside an open transaction, and of the one before it
}
