package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"
)

// expirySoon is how long before their end credentials are worth a warning.
const expirySoon = 14 * 24 * time.Hour

// credentials examines what we show the broker, without asking it.
func (x *examination) credentials() {
	x.expiry()
	if !unixModes {
		return
	}
	if x.configHasSecret() {
		x.secrets(x.cfg.Name())
	} else {
		x.secrets("")
	}
}

// expiry examines when they end.
func (x *examination) expiry() {
	const check = "credentials"
	what, at, known := x.dialer.Expiry()
	now := x.now()
	switch left := at.Sub(now); {
	case !known:
		x.add(levelOK, check, "none that end, as far as can be known here", "")
	case left <= 0:
		x.add(levelCritical, check, fmt.Sprintf("%s ended at %s", what, at.UTC().Format(time.RFC3339)), "put new ones into the same place: they are used at the next reconnect")
	case left < expirySoon:
		x.add(levelWarning, check, fmt.Sprintf("%s end in %s, at %s", what, age(left), at.UTC().Format(time.RFC3339)), "put new ones into the same place: they are used at the next reconnect")
	default:
		x.add(levelOK, check, fmt.Sprintf("%s end at %s", what, at.UTC().Format(time.RFC3339)), "")
	}
}

// secrets examines who can read the files with secrets in them: those that the
// settings name, and one more, "" for none.
func (x *examination) secrets(more string) {
	const check = "secret files"
	files := x.dialer.SecretFiles()
	if more != "" {
		files = append(files, more)
	}
	bad := 0
	for _, file := range files {
		info, err := os.Stat(file)
		switch {
		case err != nil:
			x.add(levelCritical, check, oneLine(err), "let the daemon's user, and whoever runs doctor, read it")
			bad++
		case info.Mode().Perm()&0o006 != 0:
			x.add(levelWarning, check, fmt.Sprintf("%s has mode %04o: %s", file, info.Mode().Perm(), whoMay(info.Mode().Perm()&0o006)), "chmod 0600 "+shellQuote(file)+", owned by the daemon's user")
			bad++
		}
	}
	switch {
	case len(files) == 0:
		x.add(levelOK, check, "none", "")
	case bad == 0:
		x.add(levelOK, check, fmt.Sprintf("%s, not for everybody to read", plural(int64(len(files)), "file", "files")), "")
	}
}

// configHasSecret reports whether a secret is written out in the configuration
// itself, rather than taken from a variable or another file.
func (x *examination) configHasSecret() bool {
	source, err := os.ReadFile(x.cfg.Name())
	if err != nil {
		return false
	}
	secrets := []string{string(x.cfg.NATS.Password), string(x.cfg.NATS.Token), string(x.cfg.HTTP.Token)}
	for _, url := range x.cfg.NATS.URL {
		if strings.Contains(url, "@") { // a user, with a password or as a token
			secrets = append(secrets, url)
		}
	}
	for _, secret := range secrets {
		if secret != "" && bytes.Contains(source, []byte(secret)) {
			return true
		}
	}
	return false
}
