package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
)

// Get asks the server that c configures for a path such as /healthz, for a
// check from the same machine. The error is for no answer at all.
func Get(ctx context.Context, c Config, path string) (code int, body string, err error) {
	if err := c.Check(); err != nil {
		return 0, "", err
	}
	if c.Off() {
		return 0, "", errors.New("the HTTP server is off: there is nothing to ask; set listen")
	}
	network, addr := c.target()
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, addr)
		},
		DisableKeepAlives: true,
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://edge-consumer"+path, nil)
	if err != nil {
		return 0, "", err
	}
	if c.Token != "" {
		r.Header.Set("Authorization", "Bearer "+string(c.Token))
	}
	resp, err := transport.RoundTrip(r) // no redirects, no proxy
	if err != nil {
		return 0, "", fmt.Errorf("no answer at %s: %w; is edge-consumer running?", c.Listen, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return 0, "", fmt.Errorf("reading the answer of %s: %w", c.Listen, err)
	}
	return resp.StatusCode, string(b), nil
}

// target is where to dial: for all addresses, loopback.
func (c Config) target() (network, addr string) {
	if path, ok := c.socket(); ok {
		return "unix", path
	}
	host, port, _ := net.SplitHostPort(c.Listen)
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return "tcp", net.JoinHostPort(host, port)
}
