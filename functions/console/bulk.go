package console

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/task"
)

// bulkActions has the possible actions for tasks in a state. The page of a single task offers the same actions.
var bulkActions = map[string][]string{
	"scheduled": {"cancel"}, "pending": {"cancel"}, "failed": {"retry"}, "held": {"succeeded", "resend", "failed"},
}

// BulkAddress returns the address of the form that changes all tasks that match the filter of this list, on all its pages. It returns
// "" if the visitor is no admin, or if the filter has no state in which tasks can be changed.
func (p *page) BulkAddress() string {
	if !p.MayChange() || bulkActions[p.Param("state")] == nil {
		return ""
	}
	return "/console/bulk/new?" + p.query("state", "reason", "phone_number", "source", "queue", "caller", "caller_id", "from", "to").Encode()
}

type bulkForm struct {
	api.BulkPreviewResponse
	Query string // the action and the filter, whose "to" is at most the time of the count
	List  string // address of the list of the tasks
}

type bulkPage struct {
	Choices []string  // the possible actions; empty = no state is chosen, or tasks of this state cannot be changed
	Chosen  *bulkForm // nil = no action is chosen yet
}

// newBulk shows how many tasks match the filter in the address, and the form that changes all these tasks. If several actions are
// possible and the address has none, newBulk shows the choice of an action instead.
func (p *page) newBulk() error {
	shown := bulkPage{Choices: bulkActions[p.Param("state")]}
	action := p.Param("action")
	if action == "" && len(shown.Choices) == 1 {
		action = shown.Choices[0]
	}
	if action != "" {
		form, err := p.previewBulk(action)
		if err != nil {
			return err
		}
		shown.Chosen = &form
	}
	return p.show("bulk-new", p.T("Change all that match"), shown)
}

func (p *page) previewBulk(action string) (form bulkForm, err error) {
	// p.filter replaces the name of a caller by its caller_id, and a time such as "2h" by an instant: otherwise the change could
	// select other tasks than are counted here.
	query, err := p.filter("state", "reason", "phone_number", "source", "queue", "caller_id", "from", "to")
	if err != nil {
		return form, err
	}
	filter, err := p.bulkFilter(query)
	if err != nil {
		return form, err
	}
	form.BulkPreviewResponse, err = post[api.BulkPreviewResponse](p, "/api/v1/admin/bulk/preview", api.BulkPreviewRequest{Action: action, Filter: filter})
	if form.Filter.To != nil {
		query.Set("to", form.Filter.To.Format(time.RFC3339Nano))
	}
	form.List = "/console/tasks?" + query.Encode()
	query.Set("action", action)
	form.Query = query.Encode()
	return form, err
}

// bulkFilter converts the parameters of a list of tasks to a filter of a bulk change. p.filter has already written its valid times
// as RFC 3339.
func (p *page) bulkFilter(query url.Values) (f api.BulkFilter, err error) {
	f = api.BulkFilter{State: query.Get("state"), Reason: query.Get("reason"), PhoneNumber: query.Get("phone_number"), Source: query.Get("source"), Queue: query.Get("queue")}
	if text := query.Get("caller_id"); text != "" {
		f.CallerID = new(api.ID)
		if err := f.CallerID.UnmarshalJSON([]byte(strconv.Quote(text))); err != nil {
			return f, p.badField("caller_id", err.Error())
		}
	}
	for name, target := range map[string]**time.Time{"from": &f.From, "to": &f.To} {
		if text := query.Get(name); text != "" {
			parsed, err := time.Parse(time.RFC3339Nano, text)
			if err != nil || !decode.ValidOffset(parsed) {
				return f, p.badField(name, p.T("must be a time with its zone, such as 2026-01-31T08:00+08:00, or how long ago it was, such as 30m, 2h or 3d"))
			}
			*target = &parsed
		}
	}
	return f, nil
}

// startBulk starts a bulk change if the visitor has typed the counted number of tasks.
func (p *page) startBulk() error {
	query, err := url.ParseQuery(p.PostFormValue("query"))
	if err != nil {
		err = p.badField("count", p.T("The form is malformed."))
		return p.showRefused(err, "/console/bulk/new", (*page).newBulk)
	}
	started, err := p.startConfirmed(query)
	if err != nil {
		return p.showRefused(err, "/console/bulk/new?"+query.Encode(), (*page).newBulk)
	}
	return p.done("/console/bulk/"+started.ID, "bulk_started")
}

func (p *page) startConfirmed(query url.Values) (started api.BulkResponse, err error) {
	expected := p.PostFormValue("expected")
	if typed := strings.NewReplacer(",", "", " ", "").Replace(p.PostFormValue("count")); typed != expected {
		return started, p.badField("count", p.T("must be the number of tasks, %s", expected))
	}
	count, err := strconv.Atoi(expected)
	if err != nil {
		return started, p.badField("count", p.T("The form is malformed."))
	}
	filter, err := p.bulkFilter(query)
	if err != nil {
		return started, err
	}
	return post[api.BulkResponse](p, "/api/v1/admin/bulk", api.BulkRequest{Action: query.Get("action"), Filter: filter, Expected: count, Reason: p.PostFormValue("reason")})
}

func (p *page) bulks() error {
	return showGet[api.Page[api.BulkResponse]](p, "/api/v1/admin/bulk", p.query("after", "limit"), "bulks", p.T("Bulk changes"))
}

type filterData struct {
	api.BulkFilter
	Caller callerLink
}

// FilterData returns the data of the template bulk_filter.
func (p *page) FilterData(f api.BulkFilter) filterData {
	shown := filterData{BulkFilter: f}
	if f.CallerID != nil {
		shown.Caller = p.LinkCaller(*f.CallerID)
	}
	return shown
}

type bulkProgress struct{ api.BulkResponse }

// TasksAddress returns the address of the list of the tasks that match the filter, without its state and reason, because the bulk change
// has changed these. It returns "" if the address would contain a phone number.
func (b bulkProgress) TasksAddress() string {
	f := b.Filter
	if f.PhoneNumber != "" || task.MaskNumbers(f.Source) != f.Source {
		return ""
	}
	query := url.Values{}
	for name, value := range map[string]string{"source": f.Source, "queue": f.Queue, "from": instant(f.From), "to": instant(f.To)} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if f.CallerID != nil {
		query.Set("caller_id", f.CallerID.String())
	}
	return "/console/tasks?" + query.Encode()
}

func (p *page) bulk() error {
	response, err := get[api.BulkResponse](p, "/api/v1/admin/bulk/"+p.id(), nil)
	if err != nil {
		return err
	}
	if response.Filter.CallerID != nil {
		if err := p.nameCallers(*response.Filter.CallerID); err != nil {
			return err
		}
	}
	return p.show("bulk", p.T("Bulk change"), bulkProgress{response})
}

func (p *page) stopBulk() error {
	path := "/bulk/" + p.id()
	if err := p.API(http.MethodPost, "/api/v1/admin"+path+"/stop", nil, nil); err != nil {
		return err
	}
	return p.done("/console"+path, "bulk_stopped")
}
