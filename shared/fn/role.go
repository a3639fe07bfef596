package fn

import "strings"

// A Role is what a caller may do. An admin who is not limited to queues may call every route. Route.WithinQueues marks
// the routes for admins that an admin with queues may call.
type Role string

// The roles of the wire contract, as stored in callers.
const (
	Submitter Role = "submitter"
	Sender    Role = "sender"
	Receiver  Role = "receiver"
	Viewer    Role = "viewer" // reads what an admin reads, but only the host of other callers' URLs; changes nothing
	Trigger   Role = "trigger"
	Admin     Role = "admin"
)

func roleList(roles []Role) string {
	names := make([]string, len(roles))
	for i, role := range roles {
		names[i] = string(role)
	}
	return strings.Join(names, " or ")
}
