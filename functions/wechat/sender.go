package wechat

import (
	"time"

	"github.com/sendonce/sendonce/shared/fn"
)

const (
	reportTime = 5 * time.Second // the part of a call's time that is left for reports
	maxCalls   = 2               // calls that send at once in one process; with more, other calls of the process have to wait for CPU time
)

// sender is the state of the function in this process.
type sender struct {
	env         *fn.Env
	cfg         Config
	app         string // the app_id of this process's claims
	client      *client
	calls       chan struct{} // one element for each call that sends
	logDisabled func()        // logs, only once, that WECHAT_APP_ID is not set
}

// lease is longer than an attempt takes: up to three calls to WeChat, which are two sends and a request for a token between them.
func (s *sender) lease() time.Duration { return 3*s.cfg.Timeout + 45*time.Second }
