package console

import (
	"strconv"

	"github.com/sendonce/sendonce/shared/api"
)

func (p *page) alerts() error {
	return showGet[api.Page[api.AlertResponse]](p, "/api/v1/admin/alerts", p.query("after"), "alerts", p.T("Alerts"))
}

// alertValue formats the value of an alert: a number of tasks, or a fraction as a percentage.
func alertValue(kind string, value any) string {
	n, _ := value.(float64)
	if pointer, ok := value.(*float64); ok && pointer != nil {
		n = *pointer
	}
	if kind == "backlog" {
		return number(int64(n))
	}
	return strconv.FormatFloat(100*n, 'f', 1, 64) + " %"
}
