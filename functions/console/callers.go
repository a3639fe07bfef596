package console

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/fn"
)

// roles has the roles of callers, with what each allows.
var roles = []struct {
	Role fn.Role
	Text string
}{
	{fn.Submitter, "submits tasks and messages, and sees its own here"},
	{fn.Sender, "claims tasks and reports results"},
	{fn.Receiver, "receives messages"},
	{fn.Viewer, "sees what an admin sees, except whole URLs and dead-letter events of others; changes nothing"},
	{fn.Trigger, "delivers events to functions"},
	{fn.Admin, "sees and changes everything; if limited to queues, only what belongs to these queues"},
}

func (p *page) callers() error {
	return showGet[api.Page[api.CallerResponse]](p, callersPath, p.query("after"), "callers", p.T("Callers"))
}

type callerPage struct {
	api.CallerResponse
	Action string // of the form
}

// AllRoles returns the checkboxes of the form.
func (callerPage) AllRoles() any { return roles }

func (c callerPage) HasRole(role fn.Role) bool { return slices.Contains(c.Roles, string(role)) }

// Limit formats a limit: "" if the limit of the settings applies.
func (c callerPage) Limit(n *int64) string {
	if n == nil || *n == 0 {
		return ""
	}
	return strconv.FormatInt(*n, 10)
}

// Priorities returns the values of best_priority.
func (callerPage) Priorities() []string { return []string{"0", "1", "2", "3", "4", "5"} }

func (p *page) newCaller() error {
	return p.show("caller", p.T("New caller"), callerPage{Action: "/console/callers/new"})
}

func (p *page) caller() error {
	id := p.id()
	response, err := get[api.CallerResponse](p, callersPath+"/"+id, nil)
	if err != nil {
		return err
	}
	if response.MadeBy != nil {
		if err := p.nameCallers(*response.MadeBy); err != nil {
			return err
		}
	}
	return p.show("caller", p.T("Caller"), callerPage{response, "/console/callers/" + id})
}

// typedLines returns the lines of a field, without empty ones.
func (p *page) typedLines(name string) []string {
	lines := []string{}
	for line := range strings.Lines(p.PostFormValue(name)) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// typedNumber reads a whole number from a field. An empty field is 0.
func (p *page) typedNumber(name string) (*int64, error) {
	text := strings.TrimSpace(p.PostFormValue(name))
	if text == "" {
		return new(int64), nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, p.badField(name, p.T("must be a whole number"))
	}
	return &n, nil
}

// typedGrants reads from the form what a caller may do.
func (p *page) typedGrants() (api.CallerChange, error) {
	grants := api.CallerChange{
		Roles: p.PostForm["roles"], Queues: p.typedLines("queues"), BusinessTypes: p.typedLines("business_types"), Receives: p.typedLines("receives"),
	}
	for name, limit := range map[string]**int64{
		"max_waiting_tasks": &grants.MaxWaitingTasks, "max_waiting_messages": &grants.MaxWaitingMessages,
		"max_waiting_bytes": &grants.MaxWaitingBytes, "best_priority": &grants.BestPriority,
	} {
		var err error
		if *limit, err = p.typedNumber(name); err != nil {
			return grants, err
		}
	}
	return grants, nil
}

func (p *page) addCaller() error {
	grants, err := p.typedGrants()
	var added api.CallerResponse
	if err == nil {
		added, err = post[api.CallerResponse](p, callersPath, api.CallerRequest{
			Name: p.PostFormValue("name"), Roles: grants.Roles, Queues: grants.Queues, BusinessTypes: grants.BusinessTypes, Receives: grants.Receives,
			MaxWaitingMessages: grants.MaxWaitingMessages, MaxWaitingBytes: grants.MaxWaitingBytes, MaxWaitingTasks: grants.MaxWaitingTasks, BestPriority: grants.BestPriority,
		})
	}
	if err != nil {
		return p.showRefused(err, "/console/callers/new", (*page).newCaller)
	}
	return p.showToken(added)
}

// showToken shows a new token in the response to the form, so that no URL contains the token. The token cannot be shown again.
func (p *page) showToken(caller api.CallerResponse) error {
	return p.show("caller_token", p.T("New token"), caller)
}

func (p *page) editCaller() error {
	id := p.id()
	grants, err := p.typedGrants()
	if err == nil && len(grants.Roles) == 0 { // the API would leave the roles as they are
		err = p.badField("roles", p.T("choose at least one role"))
	}
	if err == nil {
		err = p.API(http.MethodPut, callersPath+"/"+id, grants, nil)
	}
	return p.finish(err, "/console/callers/"+id, (*page).caller, "saved")
}

func (p *page) rotateCaller() error {
	id := p.id()
	rotated, err := post[api.CallerResponse](p, callersPath+"/"+id+"/rotate", nil)
	if err != nil {
		return p.showRefused(err, "/console/callers/"+id, (*page).caller)
	}
	return p.showToken(rotated)
}

// revokeCaller revokes a caller if the visitor has typed the name of the caller.
func (p *page) revokeCaller() error {
	id := p.id()
	caller, err := get[api.CallerResponse](p, callersPath+"/"+id, nil)
	if err == nil && p.PostFormValue("confirm") != caller.Name {
		err = p.badField("confirm", p.T("must be the name of the caller: %s", caller.Name))
	}
	if err == nil {
		err = p.API(http.MethodPost, callersPath+"/"+id+"/revoke", nil, nil)
	}
	return p.finish(err, "/console/callers/"+id, (*page).caller, "caller_revoked")
}
