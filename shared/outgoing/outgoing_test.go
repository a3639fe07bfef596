package outgoing_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/config"
	"github.com/sendonce/sendonce/shared/outgoing"
)

func TestPermitsPublicAddressesOnly(t *testing.T) {
	t.Parallel()
	permitted := []string{
		"1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "93.184.216.34",
		"100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0",
		"168.63.129.15", "168.63.129.17", "169.253.255.255", "169.255.0.0",
		"172.15.255.255", "172.32.0.0", "192.0.1.0", "192.0.3.0", "192.167.255.255", "192.169.0.0",
		"198.17.255.255", "198.20.0.0", "203.0.112.255", "203.0.114.0", "223.255.255.255",
		"::ffff:8.8.8.8", "64:ff9b::8.8.8.8",
		"2000::", "2001:200::1", "2001:4860:4860::8888", "2606:4700::1111", "2606:4700::1111%eth0", "3ffe:ffff::1", "3fff:1000::1",
	}
	refused := []string{
		"0.0.0.0", "0.1.2.3", "10.0.0.0", "10.255.255.255", "100.64.0.0", "100.100.100.200", "100.127.255.255",
		"127.0.0.1", "127.255.255.254", "168.63.129.16", "169.254.0.1", "169.254.169.254",
		"172.16.0.0", "172.31.255.255", "192.0.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.0.0", "192.168.255.255",
		"198.18.0.0", "198.19.255.255", "198.51.100.7", "203.0.113.7",
		"224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
		"::", "::1", "::127.0.0.1", "::8.8.8.8", "::ffff:0:8.8.8.8", "::ffff:0.0.0.0", "::ffff:127.0.0.1", "::ffff:10.1.2.3", "::ffff:169.254.169.254",
		"64:ff9b::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b::192.0.2.1", "64:ff9b:0:0:0:1:8.8.8.8", "64:ff9b:1::8.8.8.8",
		"100::1", "1fff::1", "2001::1", "2001:0:7f00:1::", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:2::1", "2001:10::1", "2001:20::1", "2001:1ff::1",
		"2001:db8::1", "2002:7f00:1::1", "2002:a00:1::1", "2002:a9fe:a9fe::", "2002:808:808::1", "3fff::1", "3fff:fff::1",
		"4000::1", "5f00::1", "8000::1", "fc00::1", "fd00:ec2::254", "fdff::1", "fe80::1", "fe80::1%eth0", "fe80::1%1", "febf::1", "fec0::1", "ff02::1", "ff02::1%eth0",
		"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
	}
	for _, a := range permitted {
		require.True(t, outgoing.Permits(netip.MustParseAddr(a), nil, nil), a)
	}
	for _, a := range refused {
		require.False(t, outgoing.Permits(netip.MustParseAddr(a), nil, nil), a)
	}
	require.False(t, outgoing.Permits(netip.Addr{}, nil, nil))
}

func TestPermitsAllowedNetworks(t *testing.T) {
	t.Parallel()
	var allowed config.Networks
	require.NoError(t, allowed.Decode("10.1.0.0/16,127.0.0.1,fd00::/8,fe80::/10"))
	for _, a := range []string{"10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "127.0.0.1", "fd00::1", "fe80::1%eth0", "8.8.8.8"} {
		require.True(t, outgoing.Permits(netip.MustParseAddr(a), allowed, nil), a)
	}
	for _, a := range []string{"10.2.0.1", "127.0.0.2", "::1", "64:ff9b::10.2.0.1", "169.254.169.254", "fc00::1"} {
		require.False(t, outgoing.Permits(netip.MustParseAddr(a), allowed, nil), a)
	}
}

func TestPermitsURL(t *testing.T) {
	t.Parallel()
	allowed := config.Networks{netip.MustParsePrefix("10.1.0.0/16")}
	for url, want := range map[string]bool{
		"https://shop.test/": true, "http://localhost:80/": true, "https://1.1.1.1": true, "http://10.1.2.3:8080/x?a=b": true, "https://[2606:4700::1111]:8443/": true,
		"http://127.0.0.1": false, "http://10.2.0.1:80/": false, "http://[::1]/": false, "http://[::ffff:127.0.0.1]:80/": false, "http://[fe80::1%25eth0]/": false, "http://a b/": false,
		"http://127.1/": true, // a name, which deliver resolves and checks
	} {
		require.Equal(t, want, outgoing.PermitsURL(url, allowed), url)
	}
}
