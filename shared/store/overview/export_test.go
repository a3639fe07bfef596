package overview

import "time"

const (
	MaxRows         = maxRows
	MaxQueues       = maxQueues
	MaxClaims       = maxClaims
	BoundsSQL       = bounds
	AddCountsSQL    = addCountsSQL
	OverviewPlanSQL = overviewPlanSQL
)

func (st *Store) SetCountTime(limit time.Duration) { st.countTime = limit }
