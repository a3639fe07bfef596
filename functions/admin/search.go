package admin

import (
	"context"
	"strconv"
	"strings"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

const maxQueryLength = 300

type searchRequest api.SearchRequest

func (r *searchRequest) Validate() []task.Field {
	var bad decode.BadFields
	r.Query = strings.TrimSpace(r.Query)
	bad.Text("q", r.Query, maxQueryLength)
	return bad
}

// search takes an id, a number or a name, and finds the matching objects that the caller may read. See byID, byNumber and byName.
func (h *handlers) search(ctx context.Context, c *fn.Call, req searchRequest) (any, error) {
	c.LetOthersRun() // a search needs little memory, and may wait for other searches
	s := search{handlers: h, c: c, text: req.Query, found: api.SearchResponse{Found: []api.SearchHit{}, Complete: true}}
	for _, find := range []func(context.Context) error{s.byID, s.byNumber, s.byName} {
		if err := find(ctx); err != nil {
			return nil, err
		}
	}
	return s.found, nil
}

// search is the state of one search.
type search struct {
	*handlers
	c     *fn.Call
	text  string
	found api.SearchResponse
}

func (s *search) add(kind, id, state string) {
	s.found.Found = append(s.found.Found, api.SearchHit{Kind: kind, ID: id, State: state})
}

// readsOnlyTasks reports whether the caller is an admin or viewer with queues. For such a caller, a search finds only tasks of these
// queues.
func (s *search) readsOnlyTasks() bool { return s.c.LimitedToQueues() && isAdminOrViewer(s.c) }

// ignoreNotFound returns nil for the error not_found. It returns other errors unchanged.
func ignoreNotFound(err error) error {
	if task.CodeOf(err) == task.CodeNotFound {
		return nil
	}
	return err
}

// byID finds the task, message or delivery with this id.
func (s *search) byID(ctx context.Context) error {
	id, err := task.ParseID(strings.ToLower(s.text))
	if err != nil {
		return nil
	}
	if err := s.addTasks(ctx, id); err != nil || s.readsOnlyTasks() {
		return err
	}
	m, err := s.env.Messages.ByID(ctx, id)
	if err == nil && (s.c.ReadsAll() || m.CallerID == s.c.Caller.ID) {
		s.add("message", id.String(), m.State())
	}
	if err = ignoreNotFound(err); err != nil {
		return err
	}
	d, err := s.env.Webhooks.Delivery(ctx, id, s.c.ReadScope())
	if err == nil {
		s.add("delivery", id.String(), d.State)
	}
	return ignoreNotFound(err)
}

// addTasks adds the tasks with these ids, except tasks that the caller may not read.
func (s *search) addTasks(ctx context.Context, ids ...task.ID) error {
	for _, id := range ids {
		t, err := s.env.Tasks.ByID(ctx, id)
		if err = ignoreNotFound(err); err != nil {
			return err
		}
		if t.ID == id && mayReadTask(s.c, t) {
			s.add("task", id.String(), t.State.String())
		}
	}
	return nil
}

// byNumber recognizes a phone number. It also finds the subscribe message with this id and, for an admin or viewer, the tasks whose
// newest claim has this id.
func (s *search) byNumber(ctx context.Context) error {
	if number, problem := s.env.Config.PhoneCountry.Phone(s.text); problem == "" {
		s.found.PhoneNumber = number
	}
	n, err := strconv.ParseInt(s.text, 10, 64)
	if err != nil || n <= 0 {
		return nil
	}
	if !s.readsOnlyTasks() {
		l, err := s.env.Subscribe.LogByID(ctx, n)
		if err == nil && (s.c.ReadsAll() || l.CallerID == s.c.Caller.ID) && s.c.MayUseBusinessType(l.BusinessType) {
			s.add("subscribe", s.text, "")
		}
		if err = ignoreNotFound(err); err != nil {
			return err
		}
	}
	if !isAdminOrViewer(s.c) {
		return nil // a search for a claim is expensive: it reads many finished tasks
	}
	return s.findTasks(ctx, tasks.Search{ClaimID: n})
}

// byName finds the tasks with this idempotency key. If there are none, an admin or viewer finds the tasks that the request with this id
// submitted. An admin or viewer without queues also finds the caller with this name.
func (s *search) byName(ctx context.Context) error {
	if task.ValidName(s.text, 255) {
		criteria := tasks.Search{Key: s.text}
		if !isAdminOrViewer(s.c) {
			criteria.Caller = &s.c.Caller.ID
		} else if len(s.text) <= 50 { // a search for a request id is expensive: it reads many rows of a log
			criteria.Request = s.text
		}
		if err := s.findTasks(ctx, criteria); err != nil {
			return err
		}
	}
	if !s.c.ReadsAll() || !task.ValidUser(s.text) {
		return nil
	}
	caller, err := s.env.Callers.ByName(ctx, s.text, true) // true = with the read role
	if err == nil {
		s.add("caller", strconv.FormatInt(caller.ID, 10), "")
	}
	return ignoreNotFound(err)
}

func (s *search) findTasks(ctx context.Context, criteria tasks.Search) error {
	criteria.Queues = s.c.Caller.Queues
	ids, complete, err := s.env.Tasks.Find(ctx, criteria)
	if err != nil {
		return err
	}
	s.found.Complete = s.found.Complete && complete
	return s.addTasks(ctx, ids...)
}
