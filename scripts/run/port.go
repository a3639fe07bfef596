package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// listenAsBefore listens on the loopback port that earlier runs had under name,
// else on a free one that later runs will have: whoever works beside us finds us
// again.
func listenAsBefore(ctx context.Context, home, name string, out io.Writer) (*net.TCPListener, error) {
	file := filepath.Join(home, name+".port")
	kept := keptPort(file)
	listener, err := listenLocally(ctx, kept)
	if err != nil && kept != 0 {
		progress(out, name, fmt.Sprintf("port %d of earlier runs is taken; there is a new one from now on", kept))
		listener, err = listenLocally(ctx, 0)
	}
	if err != nil {
		return nil, err
	}
	if port := portOf(listener); port != kept {
		if err := os.WriteFile(file, []byte(strconv.Itoa(port)+"\n"), 0o644); err != nil {
			listener.Close()
			return nil, err
		}
	}
	return listener, nil
}

// keptPort is 0 when file does not name a port.
func keptPort(file string) int {
	// What cannot be read is written anew.
	text, _ := os.ReadFile(file)
	port, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 16)
	if err != nil {
		return 0
	}
	return int(port)
}

// listenLocally takes a free port when port is 0.
func listenLocally(ctx context.Context, port int) (*net.TCPListener, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", loopback+":"+strconv.Itoa(port))
	if err != nil {
		return nil, err
	}
	return listener.(*net.TCPListener), nil
}

func portOf(listener *net.TCPListener) int { return listener.Addr().(*net.TCPAddr).Port }
