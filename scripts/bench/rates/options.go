package main

import "time"

type options struct {
	rounds      int
	duration    time.Duration // of each phase, at most
	connections []int         // of the phases that submit, ascending
	life        time.Duration // of the phase "whole life"
	rate        float64       // of submissions at fixed times; 0 = half of the measured rate
	messages    int           // number of messages that wait for the relay in each round
	json, svg   string        // files; "" = none
}

func (o options) maxConnections() int { return o.connections[len(o.connections)-1] }
