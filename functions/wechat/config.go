package wechat

import (
	"net/url"
	"time"

	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/task"
)

// Config has the function's settings.
type Config struct {
	BaseURL     url.URL       `envconfig:"WECHAT_BASE_URL" default:"https://api.weixin.qq.com" desc:"URL of the WeChat API, or of a replacement"`
	AppID       string        `envconfig:"WECHAT_APP_ID" desc:"app id of the mini program; empty sends no subscribe messages"`
	Secret      string        `envconfig:"WECHAT_APP_SECRET" secret:"true" desc:"app secret of the mini program"`
	Timeout     time.Duration `envconfig:"WECHAT_TIMEOUT" default:"10s" desc:"timeout of one call to WeChat, 1s to 10s; if the call of a message times out after a part of it was written, it is unknown whether the message was delivered"`
	Concurrency int           `envconfig:"WECHAT_CONCURRENCY" default:"32" desc:"subscribe messages that one call of the function sends at once, 1 to 500; up to two calls send at once in a process, and up to four in all processes together"`
}

// Validate names every setting whose value is not acceptable.
func (c *Config) Validate() []task.Field {
	var bad decode.BadFields
	bad.When(c.BaseURL.Scheme != "http" && c.BaseURL.Scheme != "https" || c.BaseURL.Host == "", "WECHAT_BASE_URL", "must be a URL such as https://api.weixin.qq.com")
	bad.When(c.AppID != "" && c.Secret == "", "WECHAT_APP_SECRET", "must be set together with WECHAT_APP_ID")
	bad.When(c.Timeout < time.Second || c.Timeout > 10*time.Second, "WECHAT_TIMEOUT", "must be between 1s and 10s")
	bad.When(c.Concurrency < 1 || c.Concurrency > 500, "WECHAT_CONCURRENCY", "must be between 1 and 500")
	return bad
}
