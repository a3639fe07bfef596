package console

import "github.com/sendonce/sendonce/shared/api"

func (p *page) audit() error {
	return showFiltered[api.Page[api.ActionResponse]](p, "/api/v1/admin/actions", p.query("subject", "after"), "audit", p.T("Audit log"))
}
