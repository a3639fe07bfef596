package console

import (
	"encoding/csv"
	"net/url"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/task"
)

// taskFilters has the parameters of a list of tasks, as in GET /api/v1/admin/tasks.
var taskFilters = []string{"state", "reason", "phone_number", "source", "queue", "caller_id", "from", "to", "limit", "after"}

type tasksPage struct {
	Page            api.Page[api.AdminTask]
	States, Reasons []string
}

func (p *page) tasks() error {
	if p.Param("format") == "csv" {
		if query, err := p.filter(taskFilters...); err == nil {
			return p.writeTasks(query)
		}
	}
	response, err := getFiltered[api.Page[api.AdminTask]](p, "/api/v1/admin/tasks", taskFilters...)
	if err != nil {
		return err
	}
	maskTasks(response.Items)
	return p.show("tasks", p.T("Tasks"), tasksPage{response, taskStates, taskReasons})
}

// maxExport limits the rows of an export, because an export must end before the timeout of a page.
const maxExport = 20_000

// writeTasks writes the tasks that match as CSV, without contents and with masked phone numbers. If there are more tasks after maxExport
// rows, a last line has the parameter after with which the next export continues.
func (p *page) writeTasks(query url.Values) error {
	query.Set("limit", "200")
	response, err := get[api.Page[api.AdminTask]](p, "/api/v1/admin/tasks", query)
	if err != nil {
		return err
	}
	p.w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	p.w.Header().Set("Content-Disposition", `attachment; filename="tasks.csv"`)
	out := csv.NewWriter(p.w)
	_ = out.Write([]string{ // after an error, further writes do nothing
		"task_id", "created_at", "state", "reason", "result", "error_code", "queue", "source", "caller_id", "app_id", "phone_number", "retry_count",
		"sent_at", "reported_at",
	})
	for rows := 0; ; {
		maskTasks(response.Items)
		for _, t := range response.Items {
			_ = out.Write(csvSafe(
				t.TaskID, t.CreatedAt.Format(time.RFC3339Nano), t.State, t.Reason, t.Result, t.ErrorCode, t.Queue, t.Source, t.CallerID.String(), t.AppID,
				task.MaskPhone(t.PhoneNumber), number(t.RetryCount), instant(t.SentAt), instant(t.ReportedAt),
			))
		}
		rows += len(response.Items)
		if response.NextAfter == "" {
			break
		}
		if rows >= maxExport {
			_ = out.Write([]string{p.T("More tasks match: export again with after=%s", response.NextAfter)})
			break
		}
		query.Set("after", response.NextAfter)
		response = api.Page[api.AdminTask]{}
		p.ReleaseResponses()
		if response, err = get[api.Page[api.AdminTask]](p, "/api/v1/admin/tasks", query); err != nil {
			_ = out.Write([]string{p.T("The export ended early: %s. Export again with after=%s", err.Error(), query.Get("after"))})
			break
		}
	}
	out.Flush()
	return nil // writing fails only if the visitor has left
}

// A spreadsheet may run a value that begins with one of formulaStarts as a formula (OWASP: CSV injection). A value may also begin
// after each of cellSeparators: spreadsheets of many countries separate cells by semicolons.
const (
	formulaStarts  = "=+-@＝＋－＠\t\r\n"
	cellSeparators = ";\t\r\n"
)

// csvSafe marks values so that a spreadsheet runs none of them as a formula.
func csvSafe(values ...string) []string {
	for i, value := range values {
		values[i] = markFormulas(value)
	}
	return values
}

// markFormulas writes ' before each character that may begin a formula. Tabs and line breaks are both formulaStarts and
// cellSeparators, so the next character may need a mark too.
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

// held lists the held tasks, with buttons to resolve them.
func (p *page) held() error {
	query := p.query("queue", "limit", "after")
	query.Set("state", "held")
	response, err := get[api.Page[api.AdminTask]](p, "/api/v1/admin/tasks", query)
	if err != nil {
		return err
	}
	maskTasks(response.Items)
	return p.show("held", p.T("Held tasks"), response)
}
