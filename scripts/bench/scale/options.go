package main

import "time"

type options struct {
	connections int
	rounds      int
	duration    time.Duration // of each measurement
	rate        float64       // of tasks per second while claims are measured
	rows        int           // number of finished tasks
	pin         time.Duration // how long the old transaction stays open
}
