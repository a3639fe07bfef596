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

// The caller that makes all calls.
const (
	username = "admin"
	password = "bench"
)

// CallTimeout limits each call and each dial.
const CallTimeout = 30 * time.Second

// Client is one keep-alive connection, for one goroutine. The client shares the cores with the server and Postgres, so it
// must be cheap: a call costs 18 µs of CPU in the client (36 µs with net/http), and about 100 µs in the server.
type Client struct {
	base     string
	host     fasthttp.HostClient
	request  fasthttp.Request
	response fasthttp.Response
}

// Dial returns a client with an open connection to host:port.
func Dial(address string) (*Client, error) {
	c := &Client{base: "http://" + address, host: fasthttp.HostClient{
		Addr: address, MaxConns: 1, MaxIdleConnDuration: time.Minute, MaxIdemponentCallAttempts: 1,
		ReadTimeout: CallTimeout, WriteTimeout: CallTimeout,
		NoDefaultUserAgentHeader: true, DisableHeaderNamesNormalizing: true, DisablePathNormalizing: true,
	}}
	c.request.Header.SetMethod(fasthttp.MethodPost)
	c.request.Header.SetContentType("application/json")
	c.request.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(username+":"+password)))
	var health fasthttp.Request
	health.SetRequestURI(c.base + "/healthz")
	return c, withoutAddresses(c.host.Do(&health, &c.response))
}

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
		return nil, withoutAddresses(err)
	}
	if status := c.response.StatusCode(); status/100 != 2 {
		return nil, fmt.Errorf("%d %s", status, JSONString(c.response.Body(), "error"))
	}
	return c.response.Body(), nil
}

// withoutAddresses removes the addresses from a network error, so that equal failures
// are counted together.
func withoutAddresses(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return fmt.Errorf("%s: %w", op.Op, op.Err)
	}
	return err
}

// JSONString returns the value of the first member of JSON that has this name and a string as value; "" = there is none.
// Escapes in the value are not decoded: a JSON decoder would use more CPU.
func JSONString(body []byte, name string) string {
	_, rest, found := bytes.Cut(body, []byte(`"`+name+`":"`))
	if !found {
		return ""
	}
	value, _, _ := bytes.Cut(rest, []byte{'"'})
	return string(value)
}
