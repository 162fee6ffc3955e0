package natsconn

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// servers are the URLs to connect to, and the setting they come from.
type servers struct {
	key  string
	urls []*url.URL
}

// parseServers reads URLs; a string may hold several, with commas between
// them.
func parseServers(key string, list []string) (servers, error) {
	s := servers{key: key}
	websockets := 0
	for _, raw := range split(list) {
		u, err := parseURL(raw)
		if err != nil {
			return s, fmt.Errorf("%s: %w", key, err)
		}
		if u.Scheme == "ws" || u.Scheme == "wss" {
			websockets++
		}
		s.urls = append(s.urls, u)
	}
	if websockets > 0 && websockets < len(s.urls) {
		return s, fmt.Errorf("%s: URLs with ws:// or wss:// cannot be mixed with others", key)
	}
	return s, nil
}

// split takes lists apart that are written as one string.
func split(list []string) []string {
	var all []string
	for _, some := range list {
		for one := range strings.SplitSeq(some, ",") {
			if one = strings.TrimSpace(one); one != "" {
				all = append(all, one)
			}
		}
	}
	return all
}

var schemes = []string{"nats", "tls", "ws", "wss"}

// parseURL reads the URL of a server, or host:port. What it did not understand
// may be a part of a password, so its errors do not quote it. What has a user
// but no scheme is refused: it may be the end of a password with a comma in it.
func parseURL(raw string) (*url.URL, error) {
	bare := !strings.Contains(raw, "://")
	if bare {
		raw = "nats://" + raw
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil, bare && u.User != nil, u.Path != "" && u.Path != "/", u.RawQuery != "", u.Fragment != "":
		return nil, errors.New("not a URL like nats://host:4222 or nats://user:password@host:4222; special characters in a user, password or token must be %-encoded")
	case !slices.Contains(schemes, u.Scheme):
		return nil, fmt.Errorf("a URL starts with nats://, tls://, ws:// or wss://, not with %s://", u.Scheme)
	case u.Hostname() == "":
		return nil, errors.New("a URL without a host")
	}
	return u, nil
}

// authenticated reports whether there are credentials in the URLs.
func (s servers) authenticated() bool {
	return slices.ContainsFunc(s.urls, func(u *url.URL) bool { return u.User != nil })
}

// anonymous are the same servers without credentials.
func (s servers) anonymous() servers {
	other := servers{key: s.key}
	for _, u := range s.urls {
		bare := *u
		bare.User = nil
		other.urls = append(other.urls, &bare)
	}
	return other
}

// redact prints a URL without its user: it may be a token.
func redact(u *url.URL) string {
	if u.User == nil {
		return u.String()
	}
	hidden := *u
	hidden.User = url.User("xxxxx")
	return hidden.String()
}

// redactURLs prints URLs that nobody has checked yet.
func redactURLs(list []string) string {
	var all []string
	for _, raw := range split(list) {
		u, err := parseURL(raw)
		if err != nil {
			return "(not a list of URLs)"
		}
		all = append(all, redact(u))
	}
	return strings.Join(all, ",")
}
