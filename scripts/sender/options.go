package main

import (
	"fmt"
	"io"
	"os"

	"github.com/sendonce/sendonce/shared/sender"
)

// options are the values of the flags.
type options struct {
	url, user, password string
	gateway             string
	rate                float64
	http                sender.HTTPConfig
	flaky               sender.FlakyConfig
	config              sender.Config
}

// newGateway returns the gateway that -gateway names. If the settings of the gateway are wrong, newGateway returns an
// error and a gateway that does nothing, so that sender.New can still check the other settings.
func (o *options) newGateway() (sender.Gateway, error) {
	var gateway sender.Gateway
	var err error
	switch o.gateway {
	case "console":
		return sender.NewConsole(os.Stdout), nil
	case "http":
		gateway, err = sender.NewHTTP(o.http)
	case "flaky":
		gateway, err = sender.NewFlaky(o.flaky)
	default:
		err = fmt.Errorf("-gateway is %q: it must be console, http or flaky", o.gateway)
	}
	if err != nil {
		return sender.NewConsole(io.Discard), err
	}
	return gateway, nil
}
