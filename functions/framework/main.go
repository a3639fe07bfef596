// Command framework serves the functions of Sendonce with the server of the functions framework. It has the settings of the binary
// sendonce, but not its commands. FUNCTION_TARGET picks one function; if it is unset or "sendonce", all are served. docs/platform.md
// says when to use which binary.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/GoogleCloudPlatform/functions-framework-go/funcframework"

	"github.com/sendonce/sendonce/functions"
	"github.com/sendonce/sendonce/shared/fn"
)

func main() {
	env, err := functions.Register()
	if err != nil {
		fmt.Fprintln(os.Stderr, "sendonce cannot start:", err)
		os.Exit(2)
	}
	address := env.Config.Address()
	env.Log.Info("starting the functions framework", "address", address, "version", fn.Version())
	colon := strings.LastIndexByte(address, ':') // an IPv6 host has colons, too
	err = funcframework.StartHostPort(address[:colon], address[colon+1:])
	env.Log.Error("serve failed", "cause", err.Error())
	os.Exit(1)
}
