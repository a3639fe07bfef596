package console

import (
	"encoding/csv"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/task"
)

// taskFilters are the parameters of a list of tasks, which are those of GET /api/v1/admin/tasks.
var taskFilters = []string{"state", "reason", "phone_number", "source", "queue", "caller_id", "from", "to", "limit", "after"}

// The options of two filters.
var (
	taskStates  = []string{"scheduled", "pending", "processing", "held", "succeeded", "failed"}
	taskReasons = []string{"rejected", "retries_exhausted", "timeout", "unknown", "expired", "cancelled"}
)

type tasksPage struct {
	Page            api.Page[api.AdminTask]
	States, Reasons []string
}

func (s *site) tasks(p *page) error {
	if p.Param("format") == "csv" {
		if query, err := p.filter(taskFilters...); err == nil {
			return p.writeTasks(query)
		}
	}
	found, err := filtered[api.Page[api.AdminTask]](p, "/api/v1/admin/tasks", taskFilters...)
	if err != nil {
		return err
	}
	maskTasks(found.Items)
	return p.show("tasks", p.T("Tasks"), tasksPage{found, taskStates, taskReasons})
}

// maxExport is the number of rows of an export: it must end within the time of a page.
const maxExport = 20_000

// writeTasks writes the tasks that match as CSV, without contents and with masked phone numbers. It ends after
// maxExport rows with a line that has the position for the next export.
func (p *page) writeTasks(query url.Values) error {
	query.Set("limit", "200")
	found, err := get[api.Page[api.AdminTask]](p, "/api/v1/admin/tasks", query)
	if err != nil {
		return err
	}
	p.w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	p.w.Header().Set("Content-Disposition", `attachment; filename="tasks.csv"`)
	out := csv.NewWriter(p.w)
	_ = out.Write([]string{"task_id", "created_at", "state", "reason", "result", "error_code", "queue", "source", "caller_id", "app_id", "phone_number", "retry_count", "sent_at", "reported_at"}) // errors stay until Flush
	for rows := 0; ; {
		maskTasks(found.Items)
		for _, t := range found.Items {
			_ = out.Write(csvSafe(t.TaskID, t.CreatedAt.Format(time.RFC3339Nano), t.State, t.Reason, t.Result, t.ErrorCode, t.Queue, t.Source, t.CallerID.String(), t.AppID, task.MaskPhone(t.PhoneNumber), number(t.RetryCount), instant(t.SentAt), instant(t.ReportedAt)))
		}
		rows += len(found.Items)
		if found.NextAfter == "" {
			break
		}
		if rows >= maxExport {
			_ = out.Write([]string{p.T("More tasks match: export again with after=%s", found.NextAfter)})
			break
		}
		query.Set("after", found.NextAfter)
		if found, err = get[api.Page[api.AdminTask]](p, "/api/v1/admin/tasks", query); err != nil {
			_ = out.Write([]string{p.T("The export ended early: %s", err.Error())})
			break
		}
	}
	out.Flush()
	return nil // an error of writing means that the visitor has left
}

// A spreadsheet may read a formula that begins with one of formulaStarts (OWASP, CSV injection) at the start of a value, and
// after a character that may separate cells; many countries use semicolons.
const (
	formulaStarts  = "=+-@＝＋－＠\t\r\n"
	cellSeparators = ";\t\r\n"
)

// csvSafe marks values as text where a spreadsheet would read a formula.
func csvSafe(values ...string) []string {
	for i, value := range values {
		values[i] = markFormulas(value)
	}
	return values
}

// markFormulas writes ' before each character that may begin a formula. Tabs and line breaks both begin a formula and
// separate cells, so the character after a marked one may need a mark too.
func markFormulas(value string) string {
	var b strings.Builder
	startsCell := true
	for _, r := range value {
		if startsCell && strings.ContainsRune(formulaStarts, r) {
			b.WriteByte('\'')
		}
		b.WriteRune(r)
		startsCell = strings.ContainsRune(cellSeparators, r)
	}
	return b.String()
}

func instant(at *time.Time) string {
	if at == nil {
		return ""
	}
	return at.Format(time.RFC3339Nano)
}

// changeTask handles the buttons of a task's page.
func (s *site) changeTask(p *page) error {
	id := p.PathValue("id")
	path, do := "/api/v1/admin/tasks/"+url.PathEscape(id)+"/", p.PathValue("do")
	var err error
	switch do {
	case "retry", "cancel":
		_, err = post[api.RepairResponse](p, path+do+"?"+url.Values{"reason": {p.PostFormValue("reason")}}.Encode(), nil)
	case "resolve":
		_, err = post[api.RepairResponse](p, path+do, api.ResolveRequest{Outcome: p.PostFormValue("outcome"), Reason: p.PostFormValue("reason")})
	case "reveal":
		if err := p.API(http.MethodPost, path+do, nil, nil); err != nil {
			return err
		}
		return p.showTask(true)
	default:
		return s.notFound(p)
	}
	if p.storeRefusal(err) {
		return p.showTask(false)
	}
	if err != nil {
		return err
	}
	back := "/console/tasks/" + url.PathEscape(id)
	if from := p.PostFormValue("back"); from != "" {
		back = localPath(from)
	}
	return p.done(back, do)
}

// held lists the held tasks, with the buttons that resolve them.
func (s *site) held(p *page) error {
	query := p.query("queue", "limit", "after")
	query.Set("state", "held")
	found, err := get[api.Page[api.AdminTask]](p, "/api/v1/admin/tasks", query)
	if err != nil {
		return err
	}
	maskTasks(found.Items)
	return p.show("held", p.T("Held tasks"), found)
}
