package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/joho/godotenv"

	"github.com/sendonce/sendonce/shared/config"
)

const (
	outgoingSetting = "SENDONCE_OUTGOING_NETWORKS"
	metricsSetting  = "SENDONCE_METRICS"
	loopback        = "127.0.0.1"
)

// settings are read from the environment and the file .env.
type settings struct {
	port         int
	home         string // absolute path of the directory with the data, the logs and the binary
	username     string
	password     string            // if BASIC_AUTH_PASSWORD is not set, withPassword reads it
	passwordFile string            // absolute; "" = the password is that of BASIC_AUTH_PASSWORD
	demoSender   bool              // start the demo sender
	sink         bool              // start the sink
	procs        bool              // each function has its own process
	procsIdle    time.Duration     // a process without calls is ended after this time
	databaseURL  string            // "" = start a private Postgres
	wechatURL    string            // of the fake WeChat; "" = there is none
	wechatSecret string            // the password of the ledger of the fake WeChat
	all          map[string]string // of .env and the environment, which overrides .env
}

// readSettings reads the environment, which overrides .env in the working directory.
func readSettings() (settings, error) {
	all, err := godotenv.Read()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return settings{}, fmt.Errorf(".env cannot be read: %w", err)
	}
	if all == nil {
		all = map[string]string{}
	}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		all[name] = value
	}
	return parseSettings(all)
}

// parseSettings returns the settings in all. The error lists all mistakes.
func parseSettings(all map[string]string) (settings, error) {
	s := settings{
		username:    cmp.Or(all["BASIC_AUTH_USERNAME"], "admin"),
		password:    all["BASIC_AUTH_PASSWORD"],
		databaseURL: all["DATABASE_URL"],
		all:         all,
	}
	var bad []error
	var err error
	portSetting := "APP_PORT"
	if all["PORT"] != "" {
		portSetting = "PORT" // overrides APP_PORT, as for the server
	}
	if s.port, err = strconv.Atoi(cmp.Or(all[portSetting], "8000")); err != nil || s.port < 1 || s.port > 65535 {
		bad = append(bad, fmt.Errorf("%s is %q: it must be a number from 1 to 65535", portSetting, all[portSetting]))
	}
	parseBool := func(name, defaultValue, accepted string) bool {
		value, err := strconv.ParseBool(cmp.Or(all[name], defaultValue))
		if err != nil {
			bad = append(bad, fmt.Errorf("%s is %q: it must be %s", name, all[name], accepted))
		}
		return value
	}
	s.demoSender = parseBool("DEMO_SENDER", "true", "true or false")
	s.sink = parseBool("SINK", "true", "true or false")
	s.procs = parseBool("PROCS", "0", "1 (a process for each function) or 0 (one process)")
	if s.procsIdle, err = time.ParseDuration(cmp.Or(all["PROCS_IDLE"], "15s")); err != nil || s.procsIdle <= 0 {
		bad = append(bad, fmt.Errorf("PROCS_IDLE is %q: it must be a duration above 0, such as 15s", all["PROCS_IDLE"]))
	}
	if s.procs && s.hasMetricsPort() {
		bad = append(bad, fmt.Errorf("%s is %q: with PROCS=1 it must be admin or open, as each function is a process of its own", metricsSetting, all[metricsSetting]))
	}
	if strings.ContainsAny(s.username+s.password, "\n\r") {
		bad = append(bad, errors.New("BASIC_AUTH_USERNAME and BASIC_AUTH_PASSWORD must be one line each"))
	}
	if strings.Contains(s.username, ":") {
		bad = append(bad, fmt.Errorf("BASIC_AUTH_USERNAME is %q: it must not contain a colon", s.username))
	}
	if s.home, err = filepath.Abs(cmp.Or(all["SENDONCE_HOME"], ".sendonce")); err != nil {
		bad = append(bad, fmt.Errorf("SENDONCE_HOME: %w", err))
	}
	return s, errors.Join(bad...)
}

// hasMetricsPort reports whether SENDONCE_METRICS is a port: then the server serves /metrics there and not at the API.
func (s settings) hasMetricsPort() bool {
	_, err := strconv.Atoi(s.all[metricsSetting])
	return err == nil
}

func (s settings) url() string { return "http://" + loopback + ":" + strconv.Itoa(s.port) }

// allowsSink reports whether SENDONCE_OUTGOING_NETWORKS allows the server to call the sink.
func (s settings) allowsSink() bool {
	var networks config.Networks
	err := networks.Decode(s.all[outgoingSetting]) // if the text is invalid, the server reports it
	return s.all[outgoingSetting] == "" || err == nil && networks.Contains(netip.MustParseAddr(loopback))
}

// runEnv returns the text of run.env: settings for programs that use the run, such as `make example`.
func (s settings) runEnv(databaseURL, nats string) string {
	return "DATABASE_URL=" + databaseURL + "\n" + nats + "WECHAT_URL=" + s.wechatURL + "\nWECHAT_LEDGER_SECRET=" + s.wechatSecret +
		"\nSENDONCE_URL=" + s.url() + "\nSENDONCE_USER=" + s.username + "\nSENDONCE_PASSWORD=" + s.password + "\n"
}

// serverEnv returns the environment of the server, the trigger and migrate: all settings of the user, some of them
// replaced. Its DATABASE_URL has the login of the owner of the database, which replaceOwnerLogin removes.
func (s settings) serverEnv(databaseURL, natsURL string) []string {
	all := maps.Clone(s.all)
	delete(all, "FUNCTION_TARGET")
	all["DATABASE_URL"] = databaseURL
	all["NATS_URL"] = natsURL
	all["SENDONCE_FUNCTIONS_URL"] = s.url()
	all["APP_HOST"] = loopback
	if all[outgoingSetting] == "" {
		all[outgoingSetting] = loopback
	}
	if all[metricsSetting] == "" {
		all[metricsSetting] = "open"
	}
	all["PORT"] = strconv.Itoa(s.port)
	all["BASIC_AUTH_USERNAME"] = s.username
	if s.passwordFile != "" {
		all["BASIC_AUTH_PASSWORD_FILE"] = s.passwordFile
	}
	var env []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		env = append(env, name+"="+all[name])
	}
	return env
}
