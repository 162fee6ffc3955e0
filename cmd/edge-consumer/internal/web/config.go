// Package web is the HTTP server of the daemon: how it stands, for probes
// (/healthz, /readyz), for Prometheus (/metrics) and for people (/version).
// Everything is read only; nothing of a message leaves through it.
package web

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	"edge.example/inbox/cmd/edge-consumer/internal/natsconn"
)

// DefaultListen is where DefaultConfig listens. The port is the one at which
// Prometheus exporters of OpenTelemetry listen too.
const DefaultListen = "127.0.0.1:9464"

// Config is the section of the configuration file. Its zero value is a server
// that is off; what the file leaves out comes from DefaultConfig.
type Config struct {
	// Listen is a host and a port, or unix:/path for a socket, which its
	// owner and group may use. "" and "off" mean no server.
	Listen string `yaml:"listen"`
	// Token, when set, must come with every request but those for /healthz,
	// as "Authorization: Bearer TOKEN". It is needed to listen beyond loopback.
	// It is sent in clear: put a proxy with TLS before it where that matters.
	Token natsconn.Secret `yaml:"token"`
}

// DefaultConfig is what a file without the section means: decode into it.
func DefaultConfig() Config { return Config{Listen: DefaultListen} }

// Off reports whether there is to be no server.
func (c Config) Off() bool { return c.Listen == "" || c.Listen == "off" }

// Check finds mistakes without listening.
func (c Config) Check() error {
	if strings.ContainsFunc(string(c.Token), func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("token: only printable ASCII without spaces fits into a header; is there a line break at its end?")
	}
	if c.Off() {
		return nil
	}
	if path, ok := c.socket(); ok {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("listen %q: the path of a socket must be absolute, as in unix:/run/edge-consumer/http.sock", c.Listen)
		}
		return nil
	}
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("listen %q: want host:port as in %s, or unix:/path, or off", c.Listen, DefaultListen)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("listen %q: %q is not a port number", c.Listen, port)
	}
	if c.Token == "" && !isLoopback(host) {
		return c.refused(host)
	}
	return nil
}

// refused is the error for an address that others can reach.
func (c Config) refused(host string) error {
	what := host + " is not a loopback address"
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		what = "this is every address of the machine"
	}
	return fmt.Errorf("listen %q: %s, so others could read it: set a token, or listen on %s", c.Listen, what, DefaultListen)
}

// isLoopback is about the text alone: of the names only localhost counts, and
// listen looks at what it came to.
func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

func (c Config) socket() (path string, ok bool) { return strings.CutPrefix(c.Listen, "unix:") }
