package console_test

import (
	"testing"

	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestMain(m *testing.M) { sandbox.Main(m, endChromium) }
