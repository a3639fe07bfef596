package console

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/sendonce/sendonce/shared/api"
)

// deadLettersPerPage keeps a page small: an event has up to 64 KiB.
const deadLettersPerPage = "10"

func (s *site) deadLetters(p *page) error {
	query := p.query("after")
	query.Set("limit", deadLettersPerPage)
	found, err := get[api.Page[api.DeadLetterResponse]](p, "/api/v1/admin/dead-letters", query)
	if err != nil {
		return err
	}
	return p.show("dead_letters", p.T("Dead letters"), found)
}

func (s *site) dismissDeadLetter(p *page) error {
	path := "/api/v1/admin/dead-letters/" + url.PathEscape(p.PathValue("id")) + "/dismiss"
	if err := p.API(http.MethodPost, path, api.DismissRequest{Reason: p.PostFormValue("reason")}, nil); err != nil {
		return p.again(err, "/console/dead-letters", s.deadLetters)
	}
	p.done("/console/dead-letters", "dismissed")
	return nil
}

// pretty indents text that is JSON.
func pretty(text string) string {
	var indented bytes.Buffer
	if json.Indent(&indented, []byte(text), "", "  ") != nil {
		return text
	}
	return indented.String()
}
