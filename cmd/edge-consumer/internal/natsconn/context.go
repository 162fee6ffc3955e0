package natsconn

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A cliContext is what matters here of the file in which the nats CLI keeps a
// context. We read it ourselves: jsm.go/natscontext would bring a server, an
// expression language and the schemas of all NATS messages, 8 MB, with it.
type cliContext struct {
	URL         string `json:"url"`
	Token       string `json:"token"`
	User        string `json:"user"`
	Password    string `json:"password"`
	Creds       string `json:"creds"`
	NKey        string `json:"nkey"`
	UserJWT     string `json:"user_jwt"`
	UserSeed    string `json:"user_seed"`
	Cert        string `json:"cert"`
	Key         string `json:"key"`
	CA          string `json:"ca"`
	TLSFirst    bool   `json:"tls_first"`
	Domain      string `json:"jetstream_domain"`
	APIPrefix   string `json:"jetstream_api_prefix"`
	InboxPrefix string `json:"inbox_prefix"`

	// Not supported, and refused rather than ignored.
	NSC              string `json:"nsc"`
	SOCKSProxy       string `json:"socks_proxy"`
	WindowsCertStore string `json:"windows_cert_store"`
}

// selected stands for the context that is selected in the nats CLI.
const selected = "selected"

// loadContext reads the context that the setting names.
func loadContext(env environment, name setting) (settings, error) {
	path, err := findContext(env, name.value)
	if err != nil {
		return settings{}, name.wrap(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return settings{}, name.wrap(err)
	}
	var c cliContext
	if err := json.Unmarshal(b, &c); err != nil {
		return settings{}, name.wrap(fmt.Errorf("%s is no context of the nats CLI: %w", path, err))
	}
	short := strings.TrimSuffix(filepath.Base(path), ".json")
	return c.settings(env, func(field string) string { return fmt.Sprintf("%s of the context %q", field, short) })
}

// findContext is the path of the context with a name.
func findContext(env environment, name string) (path string, err error) {
	if strings.HasSuffix(name, ".json") {
		path, err := env.expand(name)
		if err != nil {
			return "", err
		}
		_, err = os.Stat(path)
		if err == nil || path != filepath.Base(path) {
			return path, err
		}
	}
	dir, err := env.configDir()
	if err != nil {
		return "", err
	}
	if name == selected {
		b, err := os.ReadFile(filepath.Join(dir, "context.txt"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		if name = strings.TrimSpace(string(b)); name == "" {
			return "", fmt.Errorf("no context is selected in %s; name one, or run: nats context select NAME", dir)
		}
	}
	if strings.Contains(name, "..") || strings.ContainsAny(name, `/\`) {
		return "", fmt.Errorf("%q cannot be the name of a context, and a file of one ends with .json", name)
	}
	path = filepath.Join(dir, "context", name+".json")
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("there is no context %q in %s; %s", name, filepath.Dir(path), knownContexts(filepath.Dir(path)))
	}
	return path, nil
}

// knownContexts says which contexts there are in dir.
func knownContexts(dir string) string {
	files, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	if len(files) == 0 {
		return "there is none at all; a service may run as another user than the one who made it"
	}
	for i, file := range files {
		files[i] = strings.TrimSuffix(filepath.Base(file), ".json")
	}
	slices.Sort(files)
	return "there are: " + strings.Join(files, ", ")
}

// settings are those of the context. key names a field of it for people.
func (c *cliContext) settings(env environment, key func(field string) string) (settings, error) {
	var errs []error
	plain := func(field, value string) setting { return setting{key: key(field), value: value} }
	resolved := func(field, value string, file bool) setting {
		s, err := resolve(env, plain(field, value), file)
		errs = append(errs, err)
		return s
	}
	s := settings{
		creds:    resolved("creds", c.Creds, true),
		nkey:     resolved("nkey", c.NKey, true),
		user:     plain("user", c.User),
		password: resolved("password", c.Password, false),
		token:    resolved("token", c.Token, false),
		ca:       resolved("ca", c.CA, true),
		cert:     resolved("cert", c.Cert, true),
		certKey:  resolved("key", c.Key, true),
		tlsFirst: c.TLSFirst,
		inbox:    plain("inbox_prefix", c.InboxPrefix),
		domain:   plain("jetstream_domain", c.Domain),
		api:      plain("jetstream_api_prefix", c.APIPrefix),
	}
	if c.NSC != "" {
		errs = append(errs, errForeign(key("nsc"), "nsc", "run nsc generate creds, and set the file as creds"))
	}
	if c.WindowsCertStore != "" {
		errs = append(errs, errForeign(key("windows_cert_store"), "the Windows certificate store", "export the certificate and key to PEM files, and set them as cert and key"))
	}
	if c.SOCKSProxy != "" {
		errs = append(errs, errNoProxy(key("socks_proxy")))
	}
	switch jwt, seed := resolved("user_jwt", c.UserJWT, false), resolved("user_seed", c.UserSeed, false); {
	case jwt.set() && s.creds.set():
		errs = append(errs, fmt.Errorf("%s and %s are both set: keep one of them", s.creds.key, jwt.key))
	case jwt.set():
		var err error
		s.creds, err = joinCreds(jwt, seed)
		errs = append(errs, err)
	}
	var err error
	s.servers, err = parseServers(key("url"), []string{c.URL})
	return s, errors.Join(append(errs, err)...)
}

// errForeign is for secrets that another tool keeps. A service that nobody
// visits should not depend on that tool and its login.
func errForeign(key, tool, instead string) error {
	return fmt.Errorf("%s: the secret is kept by %s, which edge-consumer does not ask; %s", key, tool, instead)
}

// resolve replaces a reference such as env://NAME by what it refers to. With
// file, the setting is the path of a file, and a reference its content.
func resolve(env environment, s setting, file bool) (setting, error) {
	scheme, rest, ok := strings.Cut(s.value, ":")
	if !ok {
		return s, nil
	}
	tail, slashes := strings.CutPrefix(rest, "//")
	switch scheme = strings.ToLower(scheme); {
	case scheme == "op" && slashes:
		return setting{}, errForeign(s.key, "1Password", "write it to a file that only the service can read, or refer to a variable with env://NAME")
	case scheme == "nsc" && slashes:
		return setting{}, errForeign(s.key, "nsc", "run nsc generate creds, and set the file as creds")
	case scheme == "env" && slashes:
		s.value, s.inline = env.get(tail), file
		if s.value == "" {
			return setting{}, fmt.Errorf("%s: the environment variable %s is not set", s.key, tail)
		}
	case scheme == "data" && (file || strings.Contains(rest, ";base64,")):
		_, encoded, ok := strings.Cut(rest, ";base64,")
		b, err := base64.StdEncoding.DecodeString(encoded)
		if !ok || err != nil || len(b) == 0 {
			return setting{}, fmt.Errorf("%s: after data: there must be ;base64, and base64", s.key)
		}
		s.value, s.inline = string(b), file
	case scheme == "file" && slashes && file:
		s.value = tail
	case scheme == "file" && slashes:
		path, err := env.expand(tail)
		if err != nil {
			return setting{}, s.wrap(err)
		}
		b, err := setting{key: s.key, value: path}.read()
		if err != nil {
			return setting{}, err
		}
		s.value = string(b)
	}
	if !file {
		s.value = strings.TrimRight(s.value, "\r\n")
	}
	return s, nil
}
