package deliver

import (
	"context"
	"encoding/binary"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// nameServer returns the resolver of an internal network: names with "inside" have a private address, the lookup of names with
// "broken" fails, and other names do not exist.
func nameServer(t *testing.T) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		for buffer := make([]byte, 512); ; {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(dnsResponse(buffer[:n]), from) // if this fails, the resolver repeats the query
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

func dnsResponse(query []byte) []byte {
	const (
		header     = 12
		response   = 0x8180
		noSuchName = 3
		failure    = 2
		typeA      = 1
	)
	end := header
	for query[end] != 0 {
		end += 1 + int(query[end])
	}
	question := query[header : end+5]
	flags, answers := uint16(response), uint16(0)
	switch name := string(question); {
	case strings.Contains(name, "inside"):
		if binary.BigEndian.Uint16(query[end+1:]) == typeA {
			answers = 1
		}
	case strings.Contains(name, "broken"):
		flags |= failure
	default:
		flags |= noSuchName
	}
	reply := append([]byte{}, query[:2]...)
	for _, v := range []uint16{flags, 1, answers, 0, 0} {
		reply = binary.BigEndian.AppendUint16(reply, v)
	}
	reply = append(reply, question...)
	if answers > 0 {
		reply = append(reply, 0xC0, header, 0, typeA, 0, 1, 0, 0, 0, 60, 0, 4, 10, 0, 0, 5)
	}
	return reply
}

func TestInternalNamesLookLikeMissingNames(t *testing.T) {
	t.Parallel()
	p := newPoster(time.Minute, nil)
	dialer := net.Dialer{Resolver: nameServer(t), ControlContext: newGuard(nil).control}
	p.transport.DialContext = dialer.DialContext
	causes := make(chan string, 1)
	p.logNonPublic = func(host string, cause error) { causes <- host + ": " + cause.Error() }
	for host, cause := range map[string]string{
		"inside.test.": "not resolve to a public address", "missing.test.": "no such host", "broken.test.": "server misbehaving",
	} {
		a := p.try(t.Context(), "https://"+host+"/hook")
		require.Equal(t, attempt{at: a.at, duration: a.duration, err: errNotPublic.Error()}, a, host)
		require.GreaterOrEqual(t, a.duration, lookupStep, host)
		logged := <-causes
		require.True(t, strings.HasPrefix(logged, host+": ") && strings.Contains(logged, cause), "the cause is logged for an operator: %s", logged)
	}
}

func TestLookupTimeIsHidden(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for took, shown := range map[time.Duration]time.Duration{
			time.Millisecond: lookupStep, 200 * time.Millisecond: lookupStep, 260 * time.Millisecond: 2 * lookupStep,
		} {
			began := time.Now()
			time.Sleep(took)
			waitForStep(t.Context(), began)
			require.Equal(t, shown, time.Since(began))
		}
	})
}
