// Command hello is a program for the tests of this package.
package main

import (
	"fmt"
	"os"
)

func main() { fmt.Println("hello", os.Getenv("WHO"), os.Getenv("GOPATH"), len(os.Args)-1) }
