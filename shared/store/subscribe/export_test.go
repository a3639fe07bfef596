package subscribe

import "time"

const (
	BusinessLogsSQL       = businessLogsSQL
	FailedLogsOfCallerSQL = failedLogsOfCallerSQL
	FailedLogsSQL         = failedLogsSQL
	FetchLimit            = fetchLimit
	MaxReleased           = maxReleased
	TemplateRatesSQL      = templateRatesSQL
	TemplateStrikes       = templateStrikes
)

func SettleLogsSQL() string { return settleLogs.SQL() }

func RateArgs(since, countedTo time.Time, callerID *int64) []any {
	return rateArgs(since, countedTo, callerID)
}

// IsRefreshing reports whether a call of this instance refreshes a provider's token, or waits for another instance to end
// its refresh.
func (st *Store) IsRefreshing() bool { return len(st.refreshing) > 0 }
