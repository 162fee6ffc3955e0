// Package natsconn connects to NATS as an operator's configuration says: by
// URL or by a context of the nats CLI, with credentials and TLS.
package natsconn

import "log/slog"

// Config is the section nats of the configuration file.
type Config struct {
	// URL is one server or several. Default: the context's, then NATS_URL,
	// then nats://localhost:4222.
	URL URLs `yaml:"url"`
	// Context names a context of the nats CLI; "selected" is the one that is
	// selected there. What is set here goes before what it says.
	Context string `yaml:"context"`

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

// TLS is its section tls.
type TLS struct {
	CA    string `yaml:"ca"`    // path: PEM certificates to trust instead of the system's
	Cert  string `yaml:"cert"`  // path: PEM client certificate
	Key   string `yaml:"key"`   // path: its PEM key
	First bool   `yaml:"first"` // TLS before the server's INFO
}

// URLs is a list that may also be written as one string.
type URLs []string

// UnmarshalYAML takes a string or a list of strings.
func (u *URLs) UnmarshalYAML(unmarshal func(any) error) error {
	var one string
	if err := unmarshal(&one); err == nil {
		*u = URLs{one}
		return nil
	}
	return unmarshal((*[]string)(u))
}

// A Secret is not printed.
type Secret string

const hidden = "(hidden)"

func (s Secret) String() string               { return hidden }
func (s Secret) GoString() string             { return hidden }
func (s Secret) LogValue() slog.Value         { return slog.StringValue(hidden) }
func (s Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }
