// Command sendonce has every function of Sendonce. FUNCTION_TARGET picks one function; if it is unset, all are served.
package main

import (
	"context"
	"os"

	"github.com/sendonce/sendonce/functions"
	"github.com/sendonce/sendonce/shared/command"
)

func main() {
	os.Exit(command.Main(context.Background(), os.Args[1:], functions.Commands(), functions.Catalogue()...))
}
