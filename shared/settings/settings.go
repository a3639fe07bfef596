// Package settings has the settings that all functions share: meanings, defaults and accepted values.
// Package config reads and lists them.
package settings

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/config"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// EncryptionKeys is the name of the setting with the encryption keys, which only some functions require.
const EncryptionKeys = "SENDONCE_ENCRYPTION_KEYS"

// MinMemoryMB is the least SENDONCE_MEMORY_MB. One caller may always use half of MinMemoryMB, enough for the largest batch.
const MinMemoryMB = 40

// The values of SENDONCE_METRICS other than a port.
const (
	MetricsForAdmin = "admin"
	MetricsForAll   = "open"
)

// Config has the settings that all functions share. Package config explains the tags.
type Config struct {
	DatabaseURL      string          `envconfig:"DATABASE_URL" secret:"true" desc:"Postgres, as postgres://host:5432/name; several hosts are allowed; with a password only if SENDONCE_HOT_ROLE and SENDONCE_READ_ROLE are empty"`
	Username         string          `envconfig:"BASIC_AUTH_USERNAME" default:"admin" desc:"user name of the built-in admin"`
	Password         string          `envconfig:"BASIC_AUTH_PASSWORD" secret:"true" desc:"password of the built-in admin; there is no default"`
	PasswordHash     string          `envconfig:"BASIC_AUTH_PASSWORD_HASH" secret:"true" desc:"instead of BASIC_AUTH_PASSWORD: the hash of that password, which sendonce hash-password prints; the trigger cannot use a hash, so set SENDONCE_TRIGGER_USER for it"`
	Host             string          `envconfig:"APP_HOST" default:"0.0.0.0" desc:"address to listen on"`
	AppPort          uint16          `envconfig:"APP_PORT" default:"8000" desc:"port to listen on; 0 = a free one"`
	Port             *uint16         `envconfig:"PORT" desc:"port to listen on; overrides APP_PORT"`
	Debug            bool            `envconfig:"DEBUG" default:"false" desc:"also write log lines of level debug"`
	FunctionTarget   string          `envconfig:"FUNCTION_TARGET" desc:"the only function to serve; empty or sendonce = all functions"`
	OutgoingNetworks config.Networks `envconfig:"SENDONCE_OUTGOING_NETWORKS" desc:"networks of addresses that are not public, but that webhooks and messages to URLs may call, such as 10.1.2.3,fd00::/8; all other addresses that are not public are refused" readby:"console,deliver,messages,stream,submit,subscribe,webhooks"`
	TrustedProxies   config.Networks `envconfig:"TRUSTED_PROXIES" desc:"networks of proxies whose X-Forwarded-For is trusted, as 10.0.0.0/8,fd00::/8"`
	EncryptionKeys   string          `envconfig:"SENDONCE_ENCRYPTION_KEYS" secret:"true" desc:"key that encrypts sessions, stored signing secrets and provider tokens: the base64 of 32 random bytes, as openssl rand -base64 32 prints it; several are separated by commas, the newest first" readby:"console,deliver,reencrypt,stream,webhooks,wechat"`
	Metrics          string          `envconfig:"SENDONCE_METRICS" default:"admin" desc:"who may read /metrics and /exporter/metrics: admin = clients with the credentials of an admin; open = everyone who reaches the port of the API; a port number = everyone who reaches this other port, which alone then serves the metrics"`
	Origins          []string        `envconfig:"SENDONCE_STREAM_ORIGINS" desc:"origins of web pages that may call the API, open a WebSocket and read the responses (CORS, without cookies), as https://chat.example.com, separated by commas; the service's own origin is needed only behind a gateway that changes the header Host"`
	TaskEvents       store.EventMode `envconfig:"TASK_EVENTS" default:"final" desc:"which changes of tasks are reported by events and webhooks: none, final or all"`
	RetryBackoff     task.Backoff    `envconfig:"RETRY_BACKOFF" default:"wechat=5s,30s,2m,10m" desc:"delays of retries by queue, as wechat=5s,30s;*=1m: the nth retry waits for the nth delay, later ones for the last; * = every other queue; without * the other queues retry at once"`
	PhoneCountry     task.Country    `envconfig:"PHONE_DEFAULT_COUNTRY_CODE" desc:"country code of phone numbers without one, as 86: then +86 138…, 0086138… and 138… are one number, stored as +86138…; empty = numbers are stored as submitted, without punctuation"`
	RetentionDays    int             `envconfig:"RETENTION_DAYS" default:"90" desc:"days after which finished tasks, messages and subscribe messages, and operator actions, move from the main tables to archive tables; 0 = never"`
	LogDays          int             `envconfig:"RETENTION_LOG_DAYS" default:"30" desc:"days after which receive_logs, send_logs and report_logs are dropped, by whole months, and finished webhook deliveries, their events, finished bulk changes and cleared alerts are deleted; 0 = never"`
	MaxConns         int             `envconfig:"SENDONCE_DATABASE_MAX_CONNS" default:"8" desc:"most connections to Postgres that one instance opens as SENDONCE_HOT_ROLE, and also as SENDONCE_READ_ROLE; as each of the other two roles it opens at most 2. One caller uses at most half of the connections of a role"`
	Pooler           bool            `envconfig:"SENDONCE_DATABASE_POOLER" default:"false" desc:"true behind PgBouncer in transaction mode: no prepared statements are used"`
	MaxCalls         int             `envconfig:"SENDONCE_MAX_CALLS" default:"1024" desc:"calls that one instance processes at once, waiting polls, streams and WebSockets not counted; further calls are refused with 503. Admins that are not limited to queues may have 32 calls more, the trigger 256 more for events"`
	MaxWaiting       int             `envconfig:"SENDONCE_MAX_WAITING" default:"2048" desc:"waiting polls, streams and WebSockets that one instance keeps open at once; further ones are refused with 503, but a poll for which tasks are ready gets them"`
	CallerShare      float64         `envconfig:"SENDONCE_CALLER_SHARE" default:"0.25" desc:"share of SENDONCE_MAX_CALLS, SENDONCE_MAX_WAITING and SENDONCE_MEMORY_MB that one caller may use at once, more than 0 and at most 1; calls beyond the share are refused with 429, or with 503 if memory is missing"`
	WaitingMessages  int64           `envconfig:"SENDONCE_CALLER_WAITING_MESSAGES" default:"100000" desc:"messages of one caller that may wait to be delivered or confirmed; further ones are refused with 429; 0 = no limit; a caller may have a limit of its own"`
	WaitingMB        int64           `envconfig:"SENDONCE_CALLER_WAITING_MB" default:"64" desc:"MiB of data that the waiting messages of one caller may have together; should be at most a quarter of the size of the stream MESSAGES or of the stream of accepted messages, whichever is smaller; 0 = no limit"`
	WaitingTasks     int64           `envconfig:"SENDONCE_CALLER_WAITING_TASKS" default:"1000000" desc:"unfinished tasks (SMS and subscribe messages) that one caller may have; further ones are refused with 429; 0 = no limit; a caller may have a limit of its own"`
	OperatorCallers  int             `envconfig:"SENDONCE_OPERATOR_CALLERS" default:"20" desc:"callers that may belong to one admin with queues: those that it creates, and those that they create in turn; a revoked caller counts for a day more"`
	MemoryMB         int             `envconfig:"SENDONCE_MEMORY_MB" default:"80" desc:"MiB for the bodies, pages and responses of the calls in progress of one instance; further calls are refused with 503. A container needs three times as much; GOMEMLIMIT is twice as much unless it is set"`
	DrainTimeout     time.Duration   `envconfig:"SENDONCE_DRAIN_TIMEOUT" default:"25s" desc:"how long calls in progress may take after SIGTERM"`
	Roles            Roles           `ignored:"true"` // a struct with settings; Load and List read it separately
	Bus              bus.Config      `ignored:"true"` // as Roles
	TwoPhase         TwoPhase        `ignored:"true"` // as Roles
	Alerts           Alerts          `ignored:"true"` // as Roles
}

// Validate checks what the types alone cannot.
func (c *Config) Validate() []task.Field {
	_, badKeys := store.ParseKeys(c.EncryptionKeys)
	const maxDays, daysRule = 36500, "must be between 0 and 36500, where 0 = kept for ever"
	var bad decode.BadFields
	bad.When(c.Username == "" || strings.Contains(c.Username, ":"), "BASIC_AUTH_USERNAME", "must not be empty or contain a colon")
	bad.When(!c.PhoneCountry.Valid(), "PHONE_DEFAULT_COUNTRY_CODE", "must be a country code without +, 1 to 3 digits such as 86, or empty")
	if badKeys != nil {
		bad.When(true, EncryptionKeys, badKeys.Error())
	}
	bad.When(!validMetrics(c.Metrics), "SENDONCE_METRICS", "must be admin, open, or a port from 1 to 65535")
	bad.When(slices.ContainsFunc(c.Origins, func(o string) bool { return !validOrigin(o) }), "SENDONCE_STREAM_ORIGINS", "must be origins such as https://chat.example.com, without a path, separated by commas")
	bad.When(c.RetentionDays < 0 || c.RetentionDays > maxDays, "RETENTION_DAYS", daysRule)
	bad.When(c.LogDays < 0 || c.LogDays > maxDays, "RETENTION_LOG_DAYS", daysRule)
	bad.When(c.MaxConns < 1 || c.MaxConns > 1000, "SENDONCE_DATABASE_MAX_CONNS", "must be between 1 and 1000")
	bad.When(c.MaxCalls < 1 || c.MaxCalls > 1_000_000, "SENDONCE_MAX_CALLS", "must be between 1 and 1000000")
	bad.When(c.WaitingMessages < 0 || c.WaitingMessages > 1_000_000_000, "SENDONCE_CALLER_WAITING_MESSAGES", "must be between 0 and 1000000000, where 0 is no limit")
	bad.When(c.WaitingMB < 0 || c.WaitingMB > 1<<20, "SENDONCE_CALLER_WAITING_MB", "must be between 0 and 1048576, where 0 is no limit")
	bad.When(c.OperatorCallers < 1 || c.OperatorCallers > 1000, "SENDONCE_OPERATOR_CALLERS", "must be between 1 and 1000")
	bad.When(c.WaitingTasks < 0 || c.WaitingTasks > 1_000_000_000, "SENDONCE_CALLER_WAITING_TASKS", "must be between 0 and 1000000000, where 0 is no limit")
	bad.When(c.MaxWaiting < 1 || c.MaxWaiting > 1_000_000, "SENDONCE_MAX_WAITING", "must be between 1 and 1000000")
	bad.When(!(c.CallerShare > 0 && c.CallerShare <= 1), "SENDONCE_CALLER_SHARE", "must be more than 0 and at most 1")
	bad.When(c.MemoryMB < MinMemoryMB || c.MemoryMB > 1_000_000, "SENDONCE_MEMORY_MB", fmt.Sprintf("must be between %d and 1000000", MinMemoryMB))
	bad.When(c.DrainTimeout <= 0 || c.DrainTimeout > time.Hour, "SENDONCE_DRAIN_TIMEOUT", "must be more than 0 and at most 1h")
	return bad
}

func validMetrics(value string) bool {
	port, err := strconv.ParseUint(value, 10, 16)
	return value == MetricsForAdmin || value == MetricsForAll || err == nil && port > 0
}

// validOrigin reports whether text is the origin of a web page.
func validOrigin(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Scheme != "" && u.Host != "" && u.Scheme+"://"+u.Host == text
}

// SetDefaults replaces 0 in MaxConns, MaxCalls, MaxWaiting, CallerShare, OperatorCallers,
// MemoryMB and DrainTimeout, and an empty Metrics, by the defaults.
func (c *Config) SetDefaults() {
	c.MaxConns = cmp.Or(c.MaxConns, 8)
	c.MaxCalls = cmp.Or(c.MaxCalls, 1024)
	c.MaxWaiting = cmp.Or(c.MaxWaiting, 2048)
	c.CallerShare = cmp.Or(c.CallerShare, 0.25)
	c.OperatorCallers = cmp.Or(c.OperatorCallers, 20)
	c.Metrics = cmp.Or(c.Metrics, MetricsForAdmin)
	c.MemoryMB = cmp.Or(c.MemoryMB, 80)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 25*time.Second)
}

// Address returns where the server listens, as host:port.
func (c *Config) Address() string {
	port := c.AppPort
	if c.Port != nil {
		port = *c.Port
	}
	return net.JoinHostPort(c.Host, strconv.Itoa(int(port)))
}

// MetricsPort returns the port that serves only metrics; "" if the port of the API serves the metrics.
func (c *Config) MetricsPort() string {
	if c.Metrics == MetricsForAdmin || c.Metrics == MetricsForAll {
		return ""
	}
	return c.Metrics
}

// Load reads the shared settings from the environment and checks them.
func Load() (Config, []task.Field) {
	var cfg Config
	problems := slices.Concat(config.Load(&cfg), config.Load(&cfg.Roles), config.Load(&cfg.Bus), config.Load(&cfg.TwoPhase), config.Load(&cfg.Alerts))
	return cfg, problems
}

// List returns the shared settings.
func List() []config.Setting {
	return slices.Concat(config.Settings[Config](), config.Settings[Roles](), config.Settings[bus.Config](), config.Settings[TwoPhase](), config.Settings[Alerts]())
}

// ServingProblems returns the settings that are missing, or contradict each other, for a process that serves functions.
// Commands such as migrate do not need them. needsKeys is true if a served function needs EncryptionKeys.
func (c *Config) ServingProblems(needsKeys bool) []task.Field {
	var bad decode.BadFields
	bad.When(c.DatabaseURL == "", "DATABASE_URL", "is not set; give a URL such as postgres://localhost:5432/sendonce")
	bad = append(bad, c.Roles.checkPassword(c.DatabaseURL)...)
	bad.When(c.Password == "" && c.PasswordHash == "", "BASIC_AUTH_PASSWORD", "is empty or not set; choose the password of the built-in admin, there is no default, or give BASIC_AUTH_PASSWORD_HASH")
	bad.When(c.Password != "" && c.PasswordHash != "", "BASIC_AUTH_PASSWORD_HASH", "and BASIC_AUTH_PASSWORD are both set; keep one of them")
	bad.When(c.EncryptionKeys == "" && needsKeys, EncryptionKeys, "is not set; give a key that encrypts stored secrets, 32 random bytes as this prints them: openssl rand -base64 32")
	return bad
}
