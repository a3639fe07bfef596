package overview

const (
	MaxRows         = maxRows
	MaxQueues       = maxQueues
	BoundsSQL       = bounds
	AddCountsSQL    = addCountsSQL
	OverviewPlanSQL = overviewPlanSQL
)
