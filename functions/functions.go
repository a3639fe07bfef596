// Package functions lists every function of Sendonce and the commands of the binary. Two programs serve the functions:
// functions/sendonce with our own server, and functions/framework with the server of the functions framework.
package functions

import (
	"github.com/sendonce/sendonce/shared/command"
	"github.com/sendonce/sendonce/shared/fn"
)

// Register registers all functions with the functions framework (see fn.Register). If a build tool generates the main
// of a program, call Register in an init function of that program:
//
//	func init() {
//		if _, err := functions.Register(); err != nil {
//			log.Fatal(err)
//		}
//	}
func Register() (*fn.Env, error) {
	return fn.Register(command.SettingsReaders(Commands()), Catalogue()...)
}
