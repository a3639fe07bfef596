package console

import (
	"net/http"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/fn"
)

// overview is the first page. A submitter's first page is its own tasks.
func (s *site) overview(p *page) error {
	if !p.May(fn.Viewer) {
		if p.May(fn.Submitter) {
			p.redirect("/console/tasks")
			return nil
		}
		return &api.Error{Status: http.StatusForbidden, Message: p.T("The console is for callers with the role admin, viewer or submitter.")}
	}
	found, err := get[api.QueuesResponse](p, "/api/v1/admin/queues", nil)
	if err != nil {
		return err
	}
	return p.show("overview", p.T("Overview"), found)
}
