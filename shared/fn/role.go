package fn

import "strings"

// A Role is what a caller may do. An admin who is not limited to queues may do everything (for an admin with queues,
// see Route.WithinQueues).
type Role string

// The roles of the wire contract, as stored in callers.
const (
	Submitter Role = "submitter"
	Sender    Role = "sender"
	Receiver  Role = "receiver"
	Viewer    Role = "viewer" // reads what an admin reads, and changes nothing
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
