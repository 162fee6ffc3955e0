package natsconn

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"edge.example/inbox"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// defaultURL is where a server runs if nobody says otherwise.
var defaultURL = &url.URL{Scheme: "nats", Host: "localhost:4222"}

// A Dialer connects to NATS. It has been checked: what can still go wrong is
// the network, the server, and files that change.
type Dialer struct {
	s settings
}

// New puts together what the configuration, the context and the environment
// say, in this order of precedence, and checks it without the network: files
// exist and hold what they should, and nothing contradicts itself. A context
// that the environment names comes last, as in the nats CLI, and only counts
// if the configuration has no URL. Errors name the setting and never quote a
// secret; there may be several, joined. That credentials have expired is no
// error, because they may be rotated: see Expiry.
//
// lookup is os.LookupEnv.
func New(c *Config, lookup func(name string) (string, bool)) (*Dialer, error) {
	env := environment(lookup)
	var all settings
	var errs []error
	add := func(s settings, err error) {
		if err == nil {
			err = s.contradiction()
		}
		errs = append(errs, err)
		all.inherit(s)
	}
	add(c.settings())
	if c.Context != "" {
		add(loadContext(env, setting{key: "nats.context", value: c.Context}))
	}
	add(env.settings())
	if name := env.setting("NATS_CONTEXT"); name.set() && c.Context == "" && len(split(c.URL)) == 0 {
		add(loadContext(env, name))
	}
	if len(all.servers.urls) == 0 {
		all.servers.urls = []*url.URL{defaultURL}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	d := &Dialer{all}
	if err := errors.Join(env.expandPaths(&d.s), d.s.complete()); err != nil {
		return nil, err
	}
	if _, err := d.options(); err != nil {
		return nil, err
	}
	return d, nil
}

// options are the connection options that the settings ask for. They hold
// state and are for one connection.
func (d *Dialer) options() ([]nats.Option, error) {
	opts, tlsErr := d.s.tlsOptions()
	login, err := d.s.credentialsOption()
	if err := errors.Join(err, tlsErr); err != nil {
		return nil, err
	}
	if login != nil {
		opts = append(opts, login)
	}
	if d.s.inbox.set() {
		opts = append(opts, nats.CustomInboxPrefix(d.s.inbox.value))
	}
	return opts, nil
}

// Connect connects under a name, as inbox.NATSOptions says: if no server can
// be reached it returns a connection that goes on trying. The options in more
// come last; with nats.RetryOnFailedConnect(false) it connects now or not at
// all. The caller closes the connection.
func (d *Dialer) Connect(name string, more ...nats.Option) (*nats.Conn, jetstream.JetStream, error) {
	login, err := d.options()
	if err != nil {
		return nil, nil, err
	}
	o := nats.GetDefaultOptions()
	o.Name = name
	for _, u := range d.s.servers.urls {
		o.Servers = append(o.Servers, u.String())
	}
	for _, opts := range [][]nats.Option{inbox.NATSOptions(), login, more} {
		for _, opt := range opts {
			if err := opt(&o); err != nil {
				return nil, nil, err
			}
		}
	}
	nc, err := o.Connect()
	if err != nil {
		return nil, nil, fmt.Errorf("NATS cannot be reached at %v: %w", d, err)
	}
	js, err := d.jetStream(nc)
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return nc, js, nil
}

func (d *Dialer) jetStream(nc *nats.Conn) (jetstream.JetStream, error) {
	switch {
	case d.s.domain.set():
		return jetstream.NewWithDomain(nc, d.s.domain.value)
	case d.s.api.set():
		return jetstream.NewWithAPIPrefix(nc, d.s.api.value)
	}
	return jetstream.New(nc)
}

// Servers are the URLs to connect to, for messages: without users,
// passwords and tokens.
func (d *Dialer) Servers() []string {
	var list []string
	for _, u := range d.s.servers.urls {
		list = append(list, redact(u))
	}
	return list
}

// Expiry reads the credentials and says what of them ends first, and when. It
// is not ok if nothing does, as far as that can be known without the network.
func (d *Dialer) Expiry() (what string, at time.Time, ok bool) {
	what, at, ok = d.s.credentialsExpiry()
	if cert, end, certOK := d.s.certExpiry(); certOK && (!ok || end.Before(at)) {
		return cert, end, true
	}
	return what, at, ok
}

// Format prints the servers, whatever the verb: the rest has secrets in it.
func (d *Dialer) Format(f fmt.State, _ rune) { io.WriteString(f, strings.Join(d.Servers(), ",")) }

// SecretFiles are the paths of the files with a secret in them that the
// settings name: credentials, seeds and keys.
func (d *Dialer) SecretFiles() []string {
	var paths []string
	for _, file := range []setting{d.s.creds, d.s.nkey, d.s.certKey} {
		if file.set() && !file.inline {
			paths = append(paths, file.value)
		}
	}
	return paths
}
