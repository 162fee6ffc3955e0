package natsconn

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"path/filepath"
	"testing"

	"edge.example/inbox/internal/natstest"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
)

// A home is a home directory with contexts of the nats CLI.
type home struct {
	t   *testing.T
	dir string
}

func newHome(t *testing.T) home { return home{t, t.TempDir()} }

// context writes a context.
func (h home) context(name string, fields map[string]any) {
	h.t.Helper()
	b, err := json.Marshal(fields)
	require.NoError(h.t, err)
	rewrite(h.t, filepath.Join(h.dir, ".config/nats/context", name+".json"), b)
}

// environ is an environment in that home.
func (h home) environ(vars map[string]string) func(string) (string, bool) {
	all := map[string]string{"HOME": h.dir}
	maps.Copy(all, vars)
	return environ(all)
}

func TestContext_Connects(t *testing.T) {
	t.Parallel()
	op := newOperator(t)
	srv := natstest.Start(t, op.rule)
	id, creds := op.creds(nil)
	_, token, seed := op.user(nil)
	h := newHome(t)
	rewrite(t, filepath.Join(h.dir, "keys/user.creds"), creds)
	lookup := h.environ(map[string]string{"KEYS": "keys", "CREDS": string(creds), "SEED": string(seed)})

	for name, fields := range map[string]map[string]any{
		"home":     {"creds": "~/keys/user.creds", "description": "ours", "color_scheme": "red", "nsc": "", "windows_ca_certs_match": nil},
		"variable": {"creds": "~/$KEYS/user.creds"},
		"file":     {"creds": "file://" + filepath.Join(h.dir, "keys/user.creds")},
		"env":      {"creds": "env://CREDS"},
		"data":     {"creds": "data:;base64," + base64.StdEncoding.EncodeToString(creds)},
		"jwt":      {"user_jwt": token, "user_seed": "env://SEED"},
		"ngs.js":   {"creds": "~/keys/user.creds", "inbox_prefix": "_INBOX_x"},
	} {
		fields["url"] = srv.URL()
		h.context(name, fields)
		nc, _ := connect(t, &Config{Context: name}, lookup)
		if name != "jwt" {
			require.Equal(t, id, userOf(t, srv, nc), name)
		}
	}
	connect(t, &Config{Context: filepath.Join(h.dir, ".config/nats/context/env.json")}, lookup)
	connect(t, &Config{Context: "~/.config/nats/context/env.json"}, lookup)

	rewrite(t, filepath.Join(h.dir, ".config/nats/context.txt"), []byte("home\n"))
	connect(t, &Config{Context: "selected"}, lookup)
	refused(t, &Config{URL: URLs{srv.URL()}}, lookup) // a context that is merely selected is not used
	connect(t, &Config{Context: "home"}, environ(map[string]string{"XDG_CONFIG_HOME": filepath.Join(h.dir, ".config"), "HOME": h.dir}))
	connect(t, &Config{}, h.environ(map[string]string{"NATS_CONTEXT": "home"}))
}

func TestContext_UserTokenAndNKey(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	id, seed := newNKey(t)
	users := natstest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "ada", Password: "lovelace"}}
		o.Nkeys = []*server.NkeyUser{{Nkey: id}}
	})
	tokens := natstest.Start(t, func(o *server.Options) { o.Authorization = "s3cret" })
	h.context("user", map[string]any{"url": users.URL(), "user": "ada", "password": "lovelace"})
	h.context("reference", map[string]any{"url": users.URL(), "user": "ada", "password": "env://PW"})
	h.context("nkey", map[string]any{"url": users.URL(), "nkey": write(t, "user.nk", seed)})
	h.context("token", map[string]any{"url": tokens.URL(), "token": "file://" + write(t, "token", []byte("s3cret\n"))})
	for _, name := range []string{"user", "reference", "nkey", "token"} {
		connect(t, &Config{Context: name}, h.environ(map[string]string{"PW": "lovelace"}))
	}
}

// The configuration goes before its context, that before the environment, and
// that before the context it names. Credentials, a certificate with its key,
// and domain with prefix are taken together.
func TestNew_Precedence(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.context("a", map[string]any{
		"url": "a:1", "user": "a-user", "password": "a-password",
		"jetstream_domain": "a-domain", "inbox_prefix": "a-inbox", "tls_first": true,
	})
	h.context("bare", map[string]any{"description": "nothing in it"})
	type got struct {
		servers                                      []string
		user, password, token, domain, prefix, inbox string
		first                                        bool
	}
	for name, test := range map[string]struct {
		c    Config
		env  map[string]string
		want got
	}{
		"Context": {
			c:    Config{Context: "a"},
			env:  map[string]string{"NATS_URL": "e:1", "NATS_TOKEN": "e-token", "NATS_CONTEXT": "unknown"},
			want: got{[]string{"nats://a:1"}, "a-user", "a-password", "", "a-domain", "", "a-inbox", true},
		},
		"ConfigurationBeforeContext": {
			c:    Config{Context: "a", URL: URLs{"c:1"}, Token: "c-token", APIPrefix: "c.prefix", InboxPrefix: "c-inbox"},
			want: got{[]string{"nats://c:1"}, "", "", "c-token", "", "c.prefix", "c-inbox", true},
		},
		"UserInURLBeforeContext": {
			c:    Config{Context: "a", URL: URLs{"nats://t@c:1"}},
			want: got{[]string{"nats://xxxxx@c:1"}, "", "", "", "a-domain", "", "a-inbox", true},
		},
		"OtherUserOtherPassword": {
			c:    Config{Context: "a", User: "c-user"},
			env:  map[string]string{"NATS_PASSWORD": "e-password"},
			want: got{[]string{"nats://a:1"}, "c-user", "e-password", "", "a-domain", "", "a-inbox", true},
		},
		"SameUser": {
			c:    Config{Context: "a", User: "a-user"},
			want: got{[]string{"nats://a:1"}, "a-user", "a-password", "", "a-domain", "", "a-inbox", true},
		},
		"EnvironmentBelowContext": {
			c:    Config{Context: "bare"},
			env:  map[string]string{"NATS_URL": "e:1", "NATS_USER": "e-user", "NATS_PASSWORD": "e-password"},
			want: got{servers: []string{"nats://e:1"}, user: "e-user", password: "e-password"},
		},
		"EnvironmentAboveItsContext": {
			env:  map[string]string{"NATS_URL": "e:1", "NATS_CONTEXT": "a"},
			want: got{[]string{"nats://e:1"}, "a-user", "a-password", "", "a-domain", "", "a-inbox", true},
		},
		"URLWithoutEnvironmentsContext": {
			c:    Config{URL: URLs{"c:1"}},
			env:  map[string]string{"NATS_CONTEXT": "a"},
			want: got{servers: []string{"nats://c:1"}},
		},
	} {
		d, err := New(&test.c, h.environ(test.env))
		require.NoError(t, err, name)
		s := d.s
		require.Equal(t, test.want, got{
			d.Servers(), s.user.value, s.password.value, s.token.value, s.domain.value, s.api.value, s.inbox.value, s.tlsFirst,
		}, name)
	}
}
