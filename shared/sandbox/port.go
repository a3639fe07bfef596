package sandbox

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
)

// FreePort returns a port below 32768 of 127.0.0.1 on which nothing listens. To programs that ask for any port, the
// system assigns only higher ports. So a server that has stopped can start again at the returned port.
func FreePort() (int, error) {
	const lowest, firstAssigned = 10_000, 32_768
	for range 100 {
		port := lowest + rand.IntN(firstAssigned-lowest)
		// net.Listen would be wrong here: a child that is being started has a copy of the listener until its exec.
		conn, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if errors.Is(err, syscall.ECONNREFUSED) {
			return port, nil
		}
		if err != nil {
			return 0, fmt.Errorf("look for a free port: %w", err)
		}
		conn.Close()
	}
	return 0, errors.New("no free port found in 100 tries")
}
