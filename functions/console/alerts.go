package console

import "github.com/sendonce/sendonce/shared/api"

func (p *page) alerts() error {
	return showGet[api.Page[api.AlertResponse]](p, "/api/v1/admin/alerts", p.query("after"), "alerts", p.T("Alerts"))
}
