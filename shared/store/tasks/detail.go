package tasks

import (
	"encoding/json"
	"time"

	"github.com/sendonce/sendonce/shared/task"
)

// Detail is a task with its body.
type Detail struct {
	task.Task
	Phone       string
	Content     string
	Source      string
	CallbackURL string
	Metadata    json.RawMessage // a JSON object or nil
	SendAt      time.Time
	CreatedAt   time.Time
	Archived    bool // the task was moved to archived_tasks
}
