package console

import (
	"net/url"
	"slices"
	"strings"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/task"
)

// maxNames is the largest number of callers in one API call for names.
const maxNames = 200

// callerLink is the name of a caller, and the path of its page if the visitor may see one.
type callerLink struct{ Name, Path string }

// nameCallers reads the names of callers for LinkCaller.
func (p *page) nameCallers(ids ...api.ID) error {
	if !p.May(fn.Viewer) {
		return nil // the visitor sees no other callers
	}
	p.callerNames = map[api.ID]string{}
	slices.Sort(ids)
	for some := range slices.Chunk(slices.Compact(ids), maxNames) {
		var list []string
		for _, id := range some {
			list = append(list, id.String())
		}
		found, err := get[api.CallerNamesResponse](p, callersPath+"/names", url.Values{"ids": {strings.Join(list, ",")}})
		if err != nil {
			return err
		}
		for _, caller := range found.Callers {
			p.callerNames[caller.ID] = caller.Name
		}
	}
	return nil
}

// LinkCaller returns the data of the template "caller". A caller whose name the visitor may not read is shown by its id.
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

// callerPath is the page of a caller; the built-in admin has none.
func (p *page) callerPath(id api.ID) string {
	if id == 0 || !p.May(fn.Viewer) {
		return ""
	}
	return "/console/callers/" + id.String()
}

// FiltersByCaller reports whether lists have rows of other callers than the visitor.
func (p *page) FiltersByCaller() bool { return p.May(fn.Viewer) }

// CallerFilter is the value of the field "caller" of a filter: the name, even if the address has only the id.
func (p *page) CallerFilter() string {
	var id api.ID
	if text := p.Param("caller_id"); p.Param("caller") == "" && id.UnmarshalJSON([]byte(text)) == nil && text != "" {
		return p.LinkCaller(id).Name
	}
	return p.Param("caller")
}

// filter returns the parameters of a list for the API. It replaces a span such as 2h by the time that long ago, and the name
// of a caller by its id.
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

// filtered reads a list of the API with the filter in the address. If the filter is refused, the page shows the refusal.
func filtered[T any](p *page, path string, names ...string) (found T, err error) {
	query, err := p.filter(names...)
	if err == nil {
		found, err = get[T](p, path, query)
	}
	if p.storeRefusal(err) {
		err = nil
	}
	return found, err
}

// callerNamed returns the id of a caller. It also accepts an id, for callers whose name the visitor may not read.
func (p *page) callerNamed(name string) (id api.ID, err error) {
	if task.ValidUser(name) {
		found, err := get[api.CallerNamesResponse](p, callersPath+"/names", url.Values{"name": {name}})
		if err != nil {
			return 0, err
		}
		if len(found.Callers) > 0 {
			return found.Callers[0].ID, nil
		}
	}
	if id.UnmarshalJSON([]byte(name)) != nil {
		return 0, p.badField("caller", p.T("there is no caller of this name"))
	}
	return id, nil
}
