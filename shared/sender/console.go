package sender

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/sendonce/sendonce/shared/text"
)

// NewConsole makes a Gateway that prints each message on a line of its own
// instead of sending it, with the middle of the number hidden.
func NewConsole(w io.Writer) Gateway {
	var turn sync.Mutex
	return GatewayFunc(func(ctx context.Context, m Message) Result {
		turn.Lock()
		defer turn.Unlock()
		if err := ctx.Err(); err != nil {
			return notSent(err)
		}
		if _, err := fmt.Fprintf(w, "sent to %s: %s\n", mask(m.PhoneNumber), text.Printable(m.Content, ' ')); err != nil {
			return Result{Message: err.Error()} // part of the line may show
		}
		return Result{Outcome: OK}
	})
}

// mask hides the middle of a phone number, or all of a short one.
func mask(phone string) string {
	digits := []rune(text.Printable(phone, ' '))
	switch {
	case len(digits) >= 8:
		return string(digits[:3]) + "****" + string(digits[len(digits)-4:])
	case len(digits) >= 5:
		return string(digits[:1]) + "****" + string(digits[len(digits)-1:])
	default:
		return "****"
	}
}
