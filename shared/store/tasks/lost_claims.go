package tasks

import (
	"sync"
	"time"
)

// maxLostClaims limits the lost claims that wait for their release. More are not remembered.
const maxLostClaims = 1000

// lostClaims are claims that may have been committed although they failed, because Postgres did not respond in time. Nobody has
// received their tasks. So when Postgres responds again, this process releases these tasks. If the process ends before that, they wait
// for the end of their leases, and then an operator must decide if their on_unknown is hold.
type lostClaims struct {
	mu        sync.Mutex
	claims    []lostClaim
	releasing bool // a try is scheduled or running
}

type lostClaim struct {
	id    int64
	req   ClaimRequest
	until time.Time // the end of the lease
}

// take removes the claims and returns those whose lease has not ended.
func (l *lostClaims) take() (claims []lostClaim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, c := range l.claims {
		if c.until.After(now) {
			claims = append(claims, c)
		}
	}
	l.claims = nil
	return claims
}
