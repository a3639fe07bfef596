package wechat

import (
	"time"

	"github.com/sendonce/sendonce/shared/fn"
)

const (
	reportTime = 5 * time.Second // the part of a call's time that is left for reports
	maxCalls   = 2               // calls that send at once in one process; with more, other calls of the process wait for its processors
)

type sender struct {
	env         *fn.Env
	cfg         Config
	app         string // the app_id of this instance's claims
	client      *client
	calls       chan struct{} // one element for each call that sends
	logDisabled func()        // logs once that there is no app id
}

// lease is longer than an attempt, which makes up to three calls to WeChat: two sends, and a request for a token between them.
func (s *sender) lease() time.Duration { return 3*s.cfg.Timeout + 45*time.Second }
