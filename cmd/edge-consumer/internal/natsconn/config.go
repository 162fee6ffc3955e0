// Package natsconn connects to NATS as an operator's configuration says: by
// URL or by a context of the nats CLI, with credentials and TLS.
//
// New puts together what the configuration, the context and the environment
// say and checks it without the network; the Dialer it returns connects. Files
// with credentials, certificates and keys are read again for every connection,
// so that rotated ones are used at the next reconnect. No error, and nothing
// that fmt or slog prints, holds a secret.
package natsconn

import (
	"fmt"
	"io"
	"log/slog"
)

// Config is the section nats of the configuration file. Its zero value
// connects as the environment says, or to localhost. In paths ~ and $VAR are
// expanded, as the nats CLI does.
type Config struct {
	// URL is one server or several. Default: the context's, then NATS_URL,
	// then nats://localhost:4222.
	URL URLs `yaml:"url"`
	// Context names a context of the nats CLI, or the file of one; "selected"
	// is the one that is selected there. What is set here goes before what it
	// says. Default, if there is no URL either: NATS_CONTEXT, or none.
	Context string `yaml:"context"`

	// One of the following, or none: the default is the context's, then the
	// environment's. User and Password may come from different places.
	Creds    string `yaml:"creds"` // path of a .creds file
	NKey     string `yaml:"nkey"`  // path of an nkey seed file
	User     string `yaml:"user"`
	Password Secret `yaml:"password"`
	Token    Secret `yaml:"token"`

	TLS TLS `yaml:"tls"`

	InboxPrefix string `yaml:"inbox_prefix"`
	Domain      string `yaml:"domain"`     // JetStream domain; or:
	APIPrefix   string `yaml:"api_prefix"` // of the JetStream API
}

// TLS is its section tls. If any of it is set, a server without TLS is refused.
type TLS struct {
	CA    string `yaml:"ca"`    // path: PEM certificates to trust instead of the system's
	Cert  string `yaml:"cert"`  // path: PEM client certificate
	Key   string `yaml:"key"`   // path: its PEM key
	First bool   `yaml:"first"` // TLS before the server's INFO
}

// settings are those of the configuration file.
func (c *Config) settings() (settings, error) {
	s := settings{
		creds:    setting{key: "nats.creds", value: c.Creds},
		nkey:     setting{key: "nats.nkey", value: c.NKey},
		user:     setting{key: "nats.user", value: c.User},
		password: setting{key: "nats.password", value: string(c.Password)},
		token:    setting{key: "nats.token", value: string(c.Token)},
		ca:       setting{key: "nats.tls.ca", value: c.TLS.CA},
		cert:     setting{key: "nats.tls.cert", value: c.TLS.Cert},
		certKey:  setting{key: "nats.tls.key", value: c.TLS.Key},
		tlsFirst: c.TLS.First,
		inbox:    setting{key: "nats.inbox_prefix", value: c.InboxPrefix},
		domain:   setting{key: "nats.domain", value: c.Domain},
		api:      setting{key: "nats.api_prefix", value: c.APIPrefix},
	}
	var err error
	s.servers, err = parseServers("nats.url", c.URL)
	return s, err
}

// URLs is a list that may also be written as one string, with commas between
// the URLs. Printed, it hides users, passwords and tokens.
type URLs []string

// UnmarshalYAML takes a string or a list of strings.
func (u *URLs) UnmarshalYAML(unmarshal func(any) error) error {
	var one string
	if err := unmarshal(&one); err == nil {
		*u = nil
		if one != "" {
			*u = URLs{one}
		}
		return nil
	}
	return unmarshal((*[]string)(u))
}

func (u URLs) String() string               { return redactURLs(u) }
func (u URLs) Format(f fmt.State, _ rune)   { io.WriteString(f, u.String()) }
func (u URLs) LogValue() slog.Value         { return slog.StringValue(u.String()) }
func (u URLs) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// A Secret is not printed; only whether there is one.
type Secret string

func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "(hidden)"
}

func (s Secret) Format(f fmt.State, _ rune)   { io.WriteString(f, s.String()) }
func (s Secret) LogValue() slog.Value         { return slog.StringValue(s.String()) }
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
