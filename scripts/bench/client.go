package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"time"
)

const (
	username    = "admin"
	password    = "bench"
	callTimeout = 30 * time.Second
)

// client is one keep-alive connection. The server and Postgres share the
// machine's cores with it, and net/http's client would take as much of them as
// the server does.
type client struct {
	address string // host:port
	head    string // what stands between the path and the length of the body
	conn    net.Conn
	in      *bufio.Reader
	request []byte
	body    []byte
}

func dial(address string) (*client, error) {
	pair := base64.StdEncoding.EncodeToString([]byte(username + ":" + password))
	c := &client{address: address, head: " HTTP/1.1\r\nHost: " + address + "\r\nUser-Agent: bench\r\nAuthorization: Basic " + pair +
		"\r\nContent-Type: application/json\r\nContent-Length: "}
	return c, c.connect()
}

func (c *client) connect() (err error) {
	if c.conn, err = net.DialTimeout("tcp", c.address, callTimeout); err == nil {
		c.in = bufio.NewReaderSize(c.conn, 16<<10)
	}
	return err
}

func (c *client) close() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// post gives the body of a 2xx answer, valid until the next post. Any other
// answer is an error, and so is a connection that broke; the next post then
// opens a new one.
func (c *client) post(path string, key, body []byte) ([]byte, error) {
	r := append(c.request[:0], "POST "...)
	r = append(r, path...)
	r = append(r, c.head...)
	r = strconv.AppendInt(r, int64(len(body)), 10)
	if len(key) > 0 {
		r = append(r, "\r\nIdempotency-Key: "...)
		r = append(r, key...)
	}
	r = append(r, "\r\n\r\n"...)
	c.request = append(r, body...)
	status, err := c.exchange()
	if err != nil {
		c.close()
		return nil, plain(err)
	}
	if status/100 != 2 {
		return nil, fmt.Errorf("%d %s", status, text(c.body, "error"))
	}
	return c.body, nil
}

func (c *client) exchange() (status int, err error) {
	if c.conn == nil {
		if err := c.connect(); err != nil {
			return 0, err
		}
	}
	if err := c.conn.SetDeadline(time.Now().Add(callTimeout)); err != nil {
		return 0, err
	}
	if _, err := c.conn.Write(c.request); err != nil {
		return 0, err
	}
	return c.read()
}

// read takes one answer; the server gives each a Content-Length.
func (c *client) read() (status int, err error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if len(line) < len("HTTP/1.1 200") {
		return 0, errors.New("an answer without a status")
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, errors.New("an answer without a status")
	}
	length := -1
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		name, value, _ := bytes.Cut(bytes.TrimRight(line, "\r\n"), []byte(": "))
		if len(name) == 0 {
			break
		}
		if string(name) == "Content-Length" {
			if length, err = strconv.Atoi(string(value)); err != nil {
				return 0, err
			}
		}
	}
	if length < 0 {
		return 0, errors.New("an answer without a Content-Length")
	}
	c.body = slices.Grow(c.body[:0], length)[:length]
	_, err = io.ReadFull(c.in, c.body)
	return status, err
}

// plain drops the ports from a network error, so that equal failures count as one.
func plain(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return fmt.Errorf("%s: %w", op.Op, op.Err)
	}
	return err
}

// text is the value of the first string field of that name in a JSON answer. A
// decoder would cost more than the call itself.
func text(body []byte, name string) string {
	_, rest, found := bytes.Cut(body, []byte(`"`+name+`":"`))
	if !found {
		return ""
	}
	value, _, _ := bytes.Cut(rest, []byte{'"'})
	return string(value)
}
