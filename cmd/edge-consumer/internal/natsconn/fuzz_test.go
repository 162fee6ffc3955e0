package natsconn

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzServers: what holds a password is never shown, whether it is understood
// or not.
func FuzzServers(f *testing.F) {
	f.Add("nats://host:4222", "user")
	f.Add("tls://a,ws://b", "u,x")
	f.Add("host", "%zz")
	f.Add("nats://[::1]:4222/?a=b#c", "@")
	f.Fuzz(func(t *testing.T, text, user string) {
		_, _ = parseServers("nats.url", []string{text})
		const password = "pass0word1"
		for _, secret := range []string{
			strings.Replace(text, "://", "://"+user+":"+password+"@", 1),
			strings.Replace(text, "://", "://"+url.UserPassword(user, password).String()+"@", 1),
			user + ":" + password + "@" + text,
		} {
			if !strings.Contains(secret, password) {
				continue
			}
			_, err := parseServers("nats.url", []string{secret})
			require.NotContains(t, fmt.Sprint(err), password)
			if err == nil {
				require.NotContains(t, redactURLs([]string{secret}), password)
			}
		}
	})
}

// FuzzContext: a context of the nats CLI is read or refused.
func FuzzContext(f *testing.F) {
	f.Add(`{"url":"nats://h","creds":"~/a.creds","tls_first":true}`)
	f.Add(`{"nsc":"nsc://o/a/u"}`)
	f.Add(`{"password":"op://vault/x","user":"env:A"}`)
	f.Add(`{"user_jwt":"e30.e30.e30","user_seed":"SU"}`)
	f.Add(`{"cert":"$X","key":"","ca":"~"}`)
	env := environment(func(name string) (string, bool) { return "/" + name, name != "NONE" })
	f.Fuzz(func(t *testing.T, text string) {
		var c cliContext
		if json.Unmarshal([]byte(text), &c) != nil {
			return
		}
		s, err := c.settings(env, func(field string) string { return field })
		if err == nil && s.creds.set() && s.creds.inline {
			_, _ = readCreds(s.creds)
		}
	})
}

// FuzzCredentials: a file of credentials is read or refused; its secret is in
// no error.
func FuzzCredentials(f *testing.F) {
	const seed = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
	f.Add("-----BEGIN NATS USER JWT-----\ne30.e30.e30\n------END NATS USER JWT------\n-----BEGIN USER NKEY SEED-----\n" + seed + "\n------END USER NKEY SEED------\n")
	f.Add(seed)
	f.Add("-----BEGIN USER NKEY SEED-----\n" + seed[:20] + "\n------END USER NKEY SEED------\n")
	f.Fuzz(func(t *testing.T, text string) {
		file := setting{key: "nats.creds", value: text, inline: true}
		_, err := readCreds(file)
		require.NotContains(t, fmt.Sprint(err), seed)
		_, _, err = readNKey(file)
		require.NotContains(t, fmt.Sprint(err), seed)
	})
}
