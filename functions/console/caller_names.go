package console

import (
	"net/url"
	"slices"
	"strings"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/task"
)

const callersPath = "/api/v1/admin/callers"

// maxNames is how many names of callers one call of the API may request.
const maxNames = 200

// callerLink is the name of a caller, and the path of the caller's page if the visitor may see this page.
type callerLink struct{ Name, Path string }

// nameCallers reads the names of callers. LinkCaller then shows these names.
func (p *page) nameCallers(ids ...api.ID) error {
	if !p.May(fn.Viewer) {
		return nil // only viewers and admins see callers
	}
	p.callerNames = map[api.ID]string{}
	slices.Sort(ids)
	for chunk := range slices.Chunk(slices.Compact(ids), maxNames) {
		var texts []string
		for _, id := range chunk {
			texts = append(texts, id.String())
		}
		named, err := get[api.CallerNamesResponse](p, callersPath+"/names", url.Values{"ids": {strings.Join(texts, ",")}})
		if err != nil {
			return err
		}
		for _, caller := range named.Callers {
			p.callerNames[caller.ID] = caller.Name
		}
	}
	return nil
}

// LinkCaller returns the name and the page of a caller. If nameCallers did not get the name, LinkCaller returns the id instead, except
// for the visitor itself and for the built-in admin.
func (p *page) LinkCaller(id api.ID) callerLink {
	name := p.callerNames[id]
	switch {
	case int64(id) == p.Caller.ID:
		return callerLink{Name: p.Caller.Name, Path: p.callerPath(id)}
	case name != "":
		return callerLink{Name: name, Path: p.callerPath(id)}
	case id == 0:
		return callerLink{Name: p.T("the built-in admin")}
	}
	return callerLink{Name: id.String()}
}

// callerPath returns the page of a caller, or "" for the built-in admin and for visitors who see no callers.
func (p *page) callerPath(id api.ID) string {
	if id == 0 || !p.May(fn.Viewer) {
		return ""
	}
	return "/console/callers/" + id.String()
}

// FiltersByCaller reports whether lists show a filter by caller: only if the visitor may read the rows of other callers.
func (p *page) FiltersByCaller() bool { return p.May(fn.Viewer) }

// CallerFilter returns the text for the input "caller" of a filter: the name of the caller, even if the URL has only caller_id.
func (p *page) CallerFilter() string {
	var id api.ID
	if text := p.Param("caller_id"); p.Param("caller") == "" && id.UnmarshalJSON([]byte(text)) == nil && text != "" {
		return p.LinkCaller(id).Name
	}
	return p.Param("caller")
}

// filter converts the query parameters of the page with these names into query parameters for the API: a time such as 2h becomes the
// instant that long ago, and the name of a caller becomes the caller's id. It also reads the name of this caller, for LinkCaller.
func (p *page) filter(names ...string) (url.Values, error) {
	query := p.query(names...)
	pastTimes(query, "from", "to")
	if name := strings.TrimSpace(p.Param("caller")); name != "" {
		id, err := p.callerNamed(name)
		if err != nil {
			return query, err
		}
		query.Set("caller_id", id.String())
	}
	var id api.ID
	if text := query.Get("caller_id"); text != "" && id.UnmarshalJSON([]byte(text)) == nil {
		return query, p.nameCallers(id)
	}
	return query, nil
}

// getFiltered reads a list of the API with the filter in the address. If the filter is not valid (400 or 409), the page shows why.
func getFiltered[T any](p *page, path string, names ...string) (response T, err error) {
	query, err := p.filter(names...)
	if err == nil {
		response, err = get[T](p, path, query)
	}
	if p.keepRefusal(err) {
		err = nil
	}
	return response, err
}

// callerNamed returns the id of the caller with this name. If the visitor can read no caller of this name and the name is a number,
// callerNamed returns this number as the id.
func (p *page) callerNamed(name string) (id api.ID, err error) {
	if task.ValidUser(name) {
		named, err := get[api.CallerNamesResponse](p, callersPath+"/names", url.Values{"name": {name}})
		if err != nil {
			return 0, err
		}
		if len(named.Callers) > 0 {
			return named.Callers[0].ID, nil
		}
	}
	if id.UnmarshalJSON([]byte(name)) != nil {
		return 0, p.badField("caller", p.T("there is no caller of this name"))
	}
	return id, nil
}
