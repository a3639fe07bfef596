package console

import (
	"github.com/sendonce/sendonce/shared/api"
)

func (p *page) audit() error {
	response, err := get[api.Page[api.ActionResponse]](p, "/api/v1/admin/actions", p.query("subject", "after"))
	if err != nil && !p.storeRefusal(err) {
		return err
	}
	return p.show("audit", p.T("Audit log"), response)
}
