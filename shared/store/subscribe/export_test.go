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

func RateArgs(since, firstOpen time.Time, callerID *int64) []any {
	return rateArgs(since, firstOpen, callerID)
}

// IsRefreshing reports whether this instance refreshes a provider's token.
func (st *Store) IsRefreshing() bool { return len(st.refreshing) > 0 }
