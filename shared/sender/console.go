package sender

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/sendonce/sendonce/shared/text"
)

// NewConsole makes a Gateway that prints each message on one line instead of sending it. It masks the middle of the
// phone number.
func NewConsole(w io.Writer) Gateway {
	var mu sync.Mutex
	return GatewayFunc(func(ctx context.Context, m Message) Result {
		mu.Lock()
		defer mu.Unlock()
		if err := ctx.Err(); err != nil {
			return notSent(err)
		}
		if _, err := fmt.Fprintf(w, "sent to %s: %s\n", mask(m.PhoneNumber), text.Printable(m.Content, ' ')); err != nil {
			return Result{Message: err.Error()} // a part of the line may have been printed
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
