package e2e

import (
	"fmt"
	"os"
	"testing"

	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestMain(m *testing.M) {
	if attack := os.Getenv(attackerVariable); attack != "" {
		if err := attackMain(attack); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	sandbox.Main(m)
}
