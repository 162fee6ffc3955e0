package natsconn

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// A setting is one value, with the name by which the operator knows it.
type setting struct {
	key    string // "nats.creds", "NATS_CREDS", `creds of the context "edge"`
	value  string
	inline bool // for files: value is the content, not a path
}

func (s setting) set() bool { return s.value != "" }

// read is the content of the file that the setting names.
func (s setting) read() ([]byte, error) {
	if s.inline {
		return []byte(s.value), nil
	}
	b, err := os.ReadFile(s.value)
	if err != nil {
		return nil, s.wrap(err)
	}
	return b, nil
}

// where names the file for people.
func (s setting) where() string {
	if s.inline {
		return s.key
	}
	return s.value
}

// file names the file in a sentence that began with the key.
func (s setting) file() string {
	if s.inline {
		return "it"
	}
	return s.value
}

// wrap says which setting err is about.
func (s setting) wrap(err error) error { return fmt.Errorf("%s: %w", s.key, err) }

// settings are what one place says: the configuration file, a context, or the
// environment. inherit puts the places together.
type settings struct {
	servers servers

	// Credentials: one kind at most.
	creds          setting
	nkey           setting
	user, password setting
	userOrToken    bool // a user without a password is a token
	token          setting

	ca, cert, certKey setting
	tlsFirst          bool

	inbox       setting
	domain, api setting
}

// credentials are the kinds of credentials that are set, by what they are set
// with.
func (s *settings) credentials() []setting {
	var kinds []setting
	if s.servers.authenticated() {
		kinds = append(kinds, setting{key: s.servers.key + " (the user in it)"})
	}
	for _, kind := range []setting{s.creds, s.nkey, s.user, s.token} {
		if kind.set() {
			kinds = append(kinds, kind)
		}
	}
	if s.password.set() && !s.user.set() {
		kinds = append(kinds, s.password)
	}
	return kinds
}

// contradiction is the error for settings of one place that exclude each other.
func (s *settings) contradiction() error {
	var errs []error
	both := func(a, b setting) {
		errs = append(errs, fmt.Errorf("%s and %s are both set: keep one of them", a.key, b.key))
	}
	if kinds := s.credentials(); len(kinds) > 1 {
		both(kinds[0], kinds[1])
	}
	if s.domain.set() && s.api.set() {
		both(s.domain, s.api)
	}
	return errors.Join(errs...)
}

// inherit takes from lower what s does not say. What belongs together stays
// together: credentials of another kind than s has are not taken, nor the key
// of another certificate.
func (s *settings) inherit(lower settings) {
	switch kinds := s.credentials(); {
	case len(kinds) == 0:
		s.creds, s.nkey, s.token = lower.creds, lower.nkey, lower.token
		s.user, s.password, s.userOrToken = lower.user, lower.password, lower.userOrToken
	default:
		lower.servers = lower.servers.anonymous()
		switch {
		case s.user.set() && !s.password.set() && (!lower.user.set() || lower.user.value == s.user.value):
			s.password = lower.password
		case s.password.set() && !s.user.set():
			s.user = lower.user
		}
	}
	if len(s.servers.urls) == 0 {
		s.servers = lower.servers
	}
	if !s.cert.set() && !s.certKey.set() {
		s.cert, s.certKey = lower.cert, lower.certKey
	}
	if !s.ca.set() {
		s.ca = lower.ca
	}
	s.tlsFirst = s.tlsFirst || lower.tlsFirst
	if !s.inbox.set() {
		s.inbox = lower.inbox
	}
	if !s.domain.set() && !s.api.set() {
		s.domain, s.api = lower.domain, lower.api
	}
}

// complete checks what all places together say, without opening a file.
func (s *settings) complete() error {
	var errs []error
	if s.userOrToken && s.user.set() && !s.password.set() {
		s.token, s.user = s.user, setting{}
	}
	if s.user.set() && !s.password.set() {
		errs = append(errs, fmt.Errorf("%s: the user has no password; if it is empty on purpose, write nats://USER:@HOST as the URL instead", s.user.key))
	}
	if s.password.set() && !s.user.set() {
		errs = append(errs, fmt.Errorf("%s: the password has no user", s.password.key))
	}
	if s.cert.set() && !s.certKey.set() {
		errs = append(errs, fmt.Errorf("%s: the certificate has no key; set the key file too", s.cert.key))
	}
	if s.certKey.set() && !s.cert.set() {
		errs = append(errs, fmt.Errorf("%s: the key has no certificate; set the certificate file too", s.certKey.key))
	}
	for _, subject := range []setting{s.inbox, s.api} {
		if subject.set() && !isSubject(strings.TrimSuffix(subject.value, ".")) {
			errs = append(errs, fmt.Errorf("%s: %q is no subject prefix: words with dots between them, without spaces and wildcards", subject.key, subject.value))
		}
	}
	s.inbox.value = strings.TrimSuffix(s.inbox.value, ".")
	if s.domain.set() && (!isSubject(s.domain.value) || strings.Contains(s.domain.value, ".")) {
		errs = append(errs, fmt.Errorf("%s: %q is no domain: one word, without dots, spaces and wildcards", s.domain.key, s.domain.value))
	}
	return errors.Join(errs...)
}

// isSubject reports whether s is a subject that can be published to.
func isSubject(s string) bool {
	for token := range strings.SplitSeq(s, ".") {
		if token == "" || strings.ContainsAny(token, "*> \t\r\n") {
			return false
		}
	}
	return true
}
