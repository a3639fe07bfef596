package console

import (
	"net/url"

	"github.com/sendonce/sendonce/shared/api"
)

// hit is a search result with its page.
type hit struct {
	api.SearchHit
	Path, Text string
}

type searchPage struct {
	Hits         []hit
	TasksAddress string // of the list of the phone number's tasks; "" if the text is not a phone number
	Complete     bool   // false = a part of the data was not searched
}

// search lists the results. If there is only one, it redirects to its page.
func (p *page) search() error {
	query := p.query("q")
	if len(query) == 0 {
		return p.show("search", p.T("Search"), searchPage{Complete: true})
	}
	response, err := get[api.SearchResponse](p, "/api/v1/admin/search", query)
	if err != nil {
		return err
	}
	shown := searchPage{Complete: response.Complete}
	for _, h := range response.Found {
		text := h.ID
		if h.Kind == "caller" {
			text = query.Get("q") // the caller's name
		}
		shown.Hits = append(shown.Hits, hit{h, subjectPages[h.Kind] + url.PathEscape(h.ID), text})
	}
	if response.PhoneNumber != "" {
		shown.TasksAddress = "/console/tasks?" + url.Values{"phone_number": {response.PhoneNumber}}.Encode()
	}
	switch {
	case len(shown.Hits) == 1 && shown.TasksAddress == "":
		return p.redirect(shown.Hits[0].Path)
	case len(shown.Hits) == 0 && shown.TasksAddress != "":
		return p.redirect(shown.TasksAddress)
	}
	return p.show("search", p.T("Search"), shown)
}
