package overview

const (
	MaxRows         = maxRows
	BoundsSQL       = bounds
	AddCountsSQL    = addCountsSQL
	OverviewPlanSQL = overviewPlanSQL
)
