package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sender"
)

const usageText = `sender claims messages from a Sendonce service and sends them, until Ctrl-C.

  with make run, started with DEMO_SENDER=false; set SENDONCE_PASSWORD to the text of .sendonce/secrets/basic_auth_password:
    go run ./scripts/sender
    (end the sender before you end make run: otherwise a program that then listens on the same port gets the password)
  a provider that accepts JSON and returns {"code": 0}:
    go run ./scripts/sender -app phone-1 -rate 10 -gateway http -http-url https://sms.example.com/send \
      -http-header 'Authorization: Bearer …' -http-body '{"to":"{{.PhoneNumber}}","text":"{{.Content}}"}' -http-ok code=0
  a gateway that fails:
    go run ./scripts/sender -gateway flaky -flaky failed=0.1,retryable=0.2,hang=0.05

Each flag may be set in the environment instead, such as -http-url as SENDER_HTTP_URL; but -url, -user and -password are
SENDONCE_URL, SENDONCE_USER and SENDONCE_PASSWORD, which make run writes into .sendonce/run.env. A flag overrides its variable.
A template has the fields {{.PhoneNumber}}, {{.Content}}, {{.TaskID}}, {{.ClaimID}} and {{.RetryCount}}. Their values are escaped
as the URL, a form or JSON requires.
The outcomes of a send are ok, failed, retryable, released and unknown. -flaky and -flaky-script also accept panic and hang.

`

func newFlags(o *options) *flag.FlagSet {
	o.http.Header, o.http.Outcomes, o.flaky.Shares = map[string]string{}, map[string]sender.Outcome{}, map[string]float64{}
	f := flag.NewFlagSet("sender", flag.ContinueOnError)
	f.SetOutput(io.Discard) // parseFlags collects the errors
	f.StringVar(&o.url, "url", "http://127.0.0.1:8000", "the service's `address`")
	f.StringVar(&o.user, "user", "admin", "the `name` of a caller that has the role sender")
	f.StringVar(&o.password, "password", "", "the caller's `token`, required; better set in the environment, since other users of this machine can see flags")
	f.StringVar(&o.config.AppID, "app", "sender", "this app's `name`, stored with each attempt")
	f.StringVar(&o.config.Queue, "queue", "default", "the `queue` to claim from")
	f.StringVar(&o.config.Journal, "journal", "sender.journal", "the `file` that records which sends were started, on a disk that outlives the process; one for each sender")
	f.IntVar(&o.config.Concurrency, "concurrency", 4, "`sends` at once, at most 300")
	f.Float64Var(&o.rate, "rate", 0, "the maximum number of `sends` that start in a second; 0 = no limit")
	f.DurationVar(&o.config.Lease, "lease", time.Minute, "the `time` after which others may claim the tasks of a sender that has died, 10s to 1h")
	f.DurationVar(&o.config.Timeout, "timeout", 30*time.Second, "the `time` that one send may take")
	f.DurationVar(&o.config.Grace, "grace", 20*time.Second, "the `time` that sends in progress may take after Ctrl-C")
	f.StringVar(&o.gateway, "gateway", "console", "what sends messages, `console|http|flaky`")
	f.StringVar(&o.http.URL, "http-url", "", "the provider's URL, a `template`")
	f.StringVar(&o.http.Method, "http-method", "POST", "the request's `method`")
	f.Func("http-header", "a header of the request, `'Name: template'`; may be repeated; in the environment one on each line", eachPart("\n", o.addHeader))
	f.StringVar(&o.http.Body, "http-body", "", "the request's body, a `template`: of the type in the header Content-Type, or JSON if there is no such header")
	f.Func("http-outcome", "the outcome for a status, a class of statuses, or no connection, a `list` such as 404=failed,5xx=retryable,unreachable=retryable", eachPart(",", o.addOutcome))
	f.Func("http-ok", "a JSON response is ok only if its field has this value, `field=value`, such as result.code=0", o.setOKField)
	f.Func("flaky", "the share of the sends with each outcome, a `list` such as failed=0.1,panic=0.01,hang=0.05; the rest is ok", eachPart(",", o.addShare))
	f.Func("flaky-script", "outcomes of the first sends, in this order, a `list` such as ok,retryable,panic; later sends follow -flaky", eachPart(",", o.addToScript))
	f.Uint64Var(&o.flaky.Seed, "flaky-seed", 0, "the `number` from which the random choices follow: the same number, the same choices")
	return f
}

// eachPart returns a function that parses a flag whose value is a list.
func eachPart(separator string, add func(string) error) func(string) error {
	return func(list string) error {
		for part := range strings.SplitSeq(list, separator) {
			if err := add(strings.TrimSpace(part)); err != nil {
				return err
			}
		}
		return nil
	}
}

func (o *options) addHeader(line string) error {
	name, value, found := strings.Cut(line, ":")
	if !found || strings.TrimSpace(name) == "" {
		return fmt.Errorf("%q is not of the form Name: value", line)
	}
	o.http.Header[strings.TrimSpace(name)] = strings.TrimSpace(value)
	return nil
}

func (o *options) addOutcome(pair string) error {
	response, name, _ := strings.Cut(pair, "=")
	outcome, known := sender.ParseOutcome(name)
	if !known {
		return fmt.Errorf("%q is not of the form 404=failed", pair)
	}
	o.http.Outcomes[response] = outcome
	return nil
}

func (o *options) setOKField(pair string) error {
	var found bool
	if o.http.OKField, o.http.OKValue, found = strings.Cut(pair, "="); !found || o.http.OKField == "" {
		return fmt.Errorf("%q is not of the form field=value", pair)
	}
	return nil
}

func (o *options) addShare(pair string) error {
	name, text, _ := strings.Cut(pair, "=")
	share, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return fmt.Errorf("%q is not of the form failed=0.1", pair)
	}
	o.flaky.Shares[name] = share
	return nil
}

func (o *options) addToScript(name string) error {
	o.flaky.Script = append(o.flaky.Script, name)
	return nil
}

// usage returns the text of -h.
func usage() string {
	var text strings.Builder
	f := newFlags(&options{})
	f.SetOutput(&text)
	f.PrintDefaults()
	return usageText + text.String()
}

// newSender returns a sender with the settings of the flags and the environment. The sender logs to out.
// The error lists all mistakes; if -h is among args, it is flag.ErrHelp.
func newSender(args []string, env func(string) (string, bool), out io.Writer) (*sender.Sender, error) {
	var o options
	f := newFlags(&o)
	bad, help := parseFlags(f, args)
	if help {
		return nil, flag.ErrHelp
	}
	bad = append(bad, readEnv(f, env)...)
	f.Visit(func(set *flag.Flag) {
		prefix, _, _ := strings.Cut(set.Name, "-")
		if (prefix == "http" || prefix == "flaky") && prefix != o.gateway {
			bad = append(bad, fmt.Errorf("-%s is for -gateway %s", set.Name, prefix))
		}
	})
	if !(o.rate >= 0 && o.rate <= 1e6) {
		bad = append(bad, errors.New("-rate must be from 0 to 1000000"))
	} else if o.rate > 0 {
		o.config.Interval = time.Duration(float64(time.Second) / o.rate)
	}
	if u, err := url.Parse(o.url); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		bad = append(bad, fmt.Errorf("-url is %q: it must be http://… or https://…", o.url))
	}
	if o.password == "" {
		bad = append(bad, errors.New("no password: set SENDONCE_PASSWORD; that of make run is in .sendonce/secrets/basic_auth_password"))
	}
	gateway, err := o.newGateway()
	bad = append(bad, err)
	o.config.Gateway, o.config.Client, o.config.Log = gateway, api.NewClient(o.url, o.user, o.password), slog.New(terminal{out, &o})
	worker, err := sender.New(o.config)
	if err := errors.Join(append(bad, err)...); err != nil {
		return nil, err
	}
	o.config.Log.Info(fmt.Sprintf("connecting to %s as the user %s", o.url, o.user))
	return worker, nil
}

// parseFlags parses args. It continues after an error, so that it returns all errors.
func parseFlags(f *flag.FlagSet, args []string) (bad []error, help bool) {
	for len(args) > 0 {
		err := f.Parse(args)
		if errors.Is(err, flag.ErrHelp) {
			return nil, true
		}
		args = f.Args()
		if err == nil && len(args) > 0 {
			err, args = fmt.Errorf("%q is not a flag", args[0]), args[1:]
		}
		if err != nil {
			bad = append(bad, err)
		}
	}
	return bad, false
}

// readEnv reads from the environment the flags that the arguments do not set.
func readEnv(f *flag.FlagSet, env func(string) (string, bool)) (bad []error) {
	isSet := map[string]bool{}
	f.Visit(func(set *flag.Flag) { isSet[set.Name] = true })
	f.VisitAll(func(known *flag.Flag) {
		name := envName(known.Name)
		value, found := env(name)
		if !found || value == "" || isSet[known.Name] {
			return
		}
		if err := f.Set(known.Name, value); err != nil {
			bad = append(bad, fmt.Errorf("%s is %q: %w", name, value, err))
		}
	})
	return bad
}

func envName(flag string) string {
	prefix := "SENDER_"
	switch flag {
	case "url", "user", "password":
		prefix = "SENDONCE_"
	}
	return prefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}
