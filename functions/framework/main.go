// Command framework serves the functions of Sendonce with the functions
// framework's own server instead of ours. FUNCTION_TARGET picks one function;
// unset or sendonce, it serves all. It has the settings of the binary sendonce, but
// not its commands. docs/platform.md says when to use which.
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
	port := strings.LastIndexByte(address, ':') // the host may have colons of its own
	err = funcframework.StartHostPort(address[:port], address[port+1:])
	env.Log.Error("serve failed", "cause", err.Error())
	os.Exit(1)
}
