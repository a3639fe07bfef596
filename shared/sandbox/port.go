package sandbox

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
)

// FreePort returns a port on which nothing listens. The system does not assign such low ports to other programs by
// itself, so a server can be restarted at the port.
func FreePort() (int, error) {
	const lowest, above = 10_000, 32_768
	for range 100 {
		port := lowest + rand.IntN(above-lowest)
		// Not with net.Listen: a child that is being started would have a copy of the
		// listener until its exec.
		conn, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if errors.Is(err, syscall.ECONNREFUSED) {
			return port, nil
		}
		if err != nil {
			return 0, fmt.Errorf("look for a free port: %w", err)
		}
		conn.Close()
	}
	return 0, errors.New("no port is free")
}
