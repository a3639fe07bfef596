package bus

import (
	"fmt"
	"strings"
)

// serverRelease is a minor version of nats-server.
type serverRelease struct{ major, minor int }

func (r serverRelease) String() string { return fmt.Sprintf("%d.%d", r.major, r.minor) }

// isReachedBy reports whether a server version, such as 2.12.1, is r or later. It is false for an invalid version.
func (r serverRelease) isReachedBy(version string) bool {
	var server serverRelease
	if _, err := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &server.major, &server.minor); err != nil {
		return false
	}
	return server.major > r.major || server.major == r.major && server.minor >= r.minor
}

// The first release of nats-server with each feature that this package uses.
var (
	priorityGroups   = serverRelease{2, 11}
	schedules        = serverRelease{2, 12}
	strictRequests   = serverRelease{2, 12} // requests with unknown fields are refused, so the server does not accept one of its own replies as a request (see the package comment)
	syncedCompaction = serverRelease{2, 15} // with sync_interval: always, a compaction syncs too
)

// Feature is something that needs nats-server Since or later. Without says what happens with older servers.
type Feature struct{ Since, Name, Without string }

// Features returns the features that do not work with every JetStream server.
func Features() []Feature {
	return []Feature{
		{strictRequests.String(), "messages that are `accepted` before they are saved (`TWO_PHASE_ENABLED`): with an older server every function could delete them", "each message is saved at once or refused with 503 (`TWO_PHASE_FAIL_OPEN`); with " + priorityGroups.String() + ", messages that were accepted by a newer server are still saved"},
		{schedules.String(), "timed wake-ups: of `sweep` when a lease ends or when the time of a `send_at` or an expiry comes, of other functions for retries of messages, webhooks and WeChat", "the work waits for the safety tick (`SENDONCE_SAFETY_TICK`); a task waits for the tick or the next claim, whichever comes first"},
		{syncedCompaction.String(), "the durability levels `host` and `replicated-host` (with `sync_interval: always`)", "only `process` and `replicated` are promised"},
	}
}
