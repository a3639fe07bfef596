package overview

// Bounds of what Read counts.
const (
	MaxRows         = maxRows
	BoundsSQL       = bounds
	AddCountsSQL    = addCountsSQL
	OverviewPlanSQL = overviewPlanSQL
)
