package tasks

import (
	"slices"
	"sync"
	"time"
)

// maxLostClaims limits the lost claims that wait for their release. More are not remembered.
const maxLostClaims = 1000

// lostClaims are claims that may have been committed although they failed, because Postgres did not respond in time. Nobody has
// received their tasks. So when Postgres responds again, this process releases these tasks. If the process ends before that, the
// tasks wait for the end of their leases, and then on_unknown decides: tasks with hold are held until an operator decides.
type lostClaims struct {
	mu        sync.Mutex
	claims    []lostClaim
	releasing bool // a try is scheduled or running
}

type lostClaim struct {
	id       int64
	req      ClaimRequest
	failedAt time.Time
}

// add remembers claims. It reports whether the caller must schedule their release.
func (l *lostClaims) add(claims ...lostClaim) (schedule bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.claims = append(l.claims, claims[:min(len(claims), maxLostClaims-len(l.claims))]...)
	schedule = !l.releasing && len(l.claims) > 0
	l.releasing = l.releasing || schedule
	return schedule
}

// leased returns the claims whose leases have not ended, and forgets the others.
func (l *lostClaims) leased() []lostClaim {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.claims = slices.DeleteFunc(l.claims, func(c lostClaim) bool { return c.failedAt.Add(c.req.Lease).Before(now) })
	return slices.Clone(l.claims)
}

// forget forgets claims that were released or not committed. It reports whether any claims remain, so that the caller must try again.
func (l *lostClaims) forget(settled []lostClaim) (again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.claims = slices.DeleteFunc(l.claims, func(c lostClaim) bool {
		return slices.ContainsFunc(settled, func(s lostClaim) bool { return s.id == c.id })
	})
	l.releasing = len(l.claims) > 0
	return l.releasing
}
