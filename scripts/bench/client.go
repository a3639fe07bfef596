package bench

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/valyala/fasthttp"
)

// The caller of all load.
const (
	username = "admin"
	password = "bench"
)

// CallTimeout is for each call and each start of a connection.
const CallTimeout = 30 * time.Second

// Client is one keep-alive connection; one goroutine may use it. The server and
// Postgres share the machine's cores with it: a call costs 18 µs of CPU, where
// net/http takes 36 and the server about 100.
type Client struct {
	base     string
	host     fasthttp.HostClient
	request  fasthttp.Request
	response fasthttp.Response
}

// Dial returns a client whose connection to host:port is open.
func Dial(address string) (*Client, error) {
	c := &Client{base: "http://" + address, host: fasthttp.HostClient{
		Addr: address, MaxConns: 1, MaxIdleConnDuration: time.Minute, MaxIdemponentCallAttempts: 1,
		ReadTimeout: CallTimeout, WriteTimeout: CallTimeout,
		NoDefaultUserAgentHeader: true, DisableHeaderNamesNormalizing: true, DisablePathNormalizing: true,
	}}
	c.request.Header.SetMethod(fasthttp.MethodPost)
	c.request.Header.SetContentType("application/json")
	c.request.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(username+":"+password)))
	var live fasthttp.Request
	live.SetRequestURI(c.base + "/healthz")
	return c, withoutPorts(c.host.Do(&live, &c.response))
}

// Close closes the connection.
func (c *Client) Close() { c.host.CloseIdleConnections() }

// Post returns the body of a 2xx response, valid until the next call. Every other
// response is an error.
func (c *Client) Post(path string, key, body []byte) ([]byte, error) {
	c.request.SetRequestURI(c.base + path)
	c.request.Header.Del("Idempotency-Key")
	if len(key) > 0 {
		c.request.Header.SetBytesV("Idempotency-Key", key)
	}
	c.request.SetBodyRaw(body)
	if err := c.host.Do(&c.request, &c.response); err != nil {
		return nil, withoutPorts(err)
	}
	if status := c.response.StatusCode(); status/100 != 2 {
		return nil, fmt.Errorf("%d %s", status, Text(c.response.Body(), "error"))
	}
	return c.response.Body(), nil
}

// withoutPorts removes the addresses from a network error, so that equal failures
// are counted as one.
func withoutPorts(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return fmt.Errorf("%s: %w", op.Op, op.Err)
	}
	return err
}

// Text is the value of the first string member of that name in JSON. A decoder
// would cost more than the call itself.
func Text(body []byte, name string) string {
	_, rest, found := bytes.Cut(body, []byte(`"`+name+`":"`))
	if !found {
		return ""
	}
	value, _, _ := bytes.Cut(rest, []byte{'"'})
	return string(value)
}
