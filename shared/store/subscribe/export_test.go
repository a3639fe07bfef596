package subscribe

import "time"

const (
	BusinessLogsSQL  = businessLogsSQL
	FailedLogsOfSQL  = failedLogsOfSQL
	FailedLogsSQL    = failedLogsSQL
	FetchLimit       = fetchLimit
	ReleasedRows     = releasedRows
	TemplateRatesSQL = templateRatesSQL
	TemplateStrikes  = templateStrikes
)

func SettleLogsSQL() string { return settleLogs.SQL() }

func RatesBetween(since, firstOpen time.Time, callerID *int64) []any {
	return ratesBetween(since, firstOpen, callerID)
}

// IsRefreshing reports whether this instance refreshes a provider's token.
func (st *Store) IsRefreshing() bool { return len(st.refreshing) > 0 }
