package natsconn

import (
	"errors"
	"os"
	"os/user"
	"path/filepath"
	"strings"
)

// environment looks environment variables up, as os.LookupEnv does.
type environment func(name string) (value string, ok bool)

// get is the value of a variable; one that is empty counts as not set.
func (e environment) get(name string) string {
	value, _ := e(name)
	return value
}

func (e environment) setting(name string) setting { return setting{key: name, value: e.get(name)} }

// settings are those of the variables that the nats CLI reads.
func (e environment) settings() (settings, error) {
	s := settings{
		creds:    e.setting("NATS_CREDS"),
		nkey:     e.setting("NATS_NKEY"),
		user:     e.setting("NATS_USER"),
		password: e.setting("NATS_PASSWORD"),
		token:    e.setting("NATS_TOKEN"),
		ca:       e.setting("NATS_CA"),
		cert:     e.setting("NATS_CERT"),
		certKey:  e.setting("NATS_KEY"),

		userOrToken: true, // "Username or Token", the nats CLI says
	}
	if e.get("NATS_SOCKS_PROXY") != "" {
		return s, errNoProxy("NATS_SOCKS_PROXY")
	}
	var errs []error
	if jwt, seed := e.setting("NATS_JWT"), e.setting("NATS_SEED"); s.creds.set() && jwt.set() {
		errs = append(errs, errors.New("NATS_CREDS and NATS_JWT are both set: keep one of them"))
	} else if jwt.set() {
		var err error
		s.creds, err = joinCreds(jwt, seed)
		errs = append(errs, err)
	}
	var err error
	s.servers, err = parseServers("NATS_URL", []string{e.get("NATS_URL")})
	return s, errors.Join(append(errs, err)...)
}

// errNoProxy is for SOCKS proxies, which the nats CLI knows and we do not.
func errNoProxy(key string) error {
	return errors.New(key + ": SOCKS proxies are not supported; unset it, and connect to a server that can be reached directly, for instance a leaf node")
}

// home is the user's home directory. A service may have no HOME.
func (e environment) home() (string, error) {
	for _, name := range []string{"HOME", "USERPROFILE"} {
		if dir := e.get(name); dir != "" {
			return dir, nil
		}
	}
	u, err := user.Current()
	if err != nil {
		return "", err
	}
	if u.HomeDir == "" {
		return "", errors.New("the user has no home directory; set HOME")
	}
	return u.HomeDir, nil
}

// configDir is where the nats CLI keeps its files, on every system.
func (e environment) configDir() (string, error) {
	dir := e.get("XDG_CONFIG_HOME")
	if dir == "" {
		home, err := e.home()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "nats"), nil
}

// expand expands variables and a leading ~ in a path.
func (e environment) expand(path string) (string, error) {
	path = os.Expand(path, e.get)
	if path != "~" && !strings.HasPrefix(path, "~/") && !strings.HasPrefix(path, "~"+string(filepath.Separator)) {
		return path, nil
	}
	home, err := e.home()
	return home + path[1:], err
}

// ExpandPath expands variables and a leading ~ in a path of the section nats.
func ExpandPath(path string, lookup func(name string) (value string, ok bool)) (string, error) {
	return environment(lookup).expand(path)
}

// expandPaths expands the paths among the settings.
func (e environment) expandPaths(s *settings) error {
	var errs []error
	for _, file := range []*setting{&s.creds, &s.nkey, &s.ca, &s.cert, &s.certKey} {
		if !file.set() || file.inline {
			continue
		}
		path, err := e.expand(file.value)
		switch {
		case err != nil:
			errs = append(errs, file.wrap(err))
		case path == "":
			errs = append(errs, file.wrap(errors.New("nothing is left of "+file.value+" once its variables are expanded")))
		}
		file.value = path
	}
	return errors.Join(errs...)
}
