package natsconn

import (
	"crypto/tls"
	"strings"
	"testing"
	"time"

	"edge.example/inbox/internal/natstest"
	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// none is an empty environment.
func none(string) (string, bool) { return "", false }

// environ is an environment with these variables.
func environ(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		value, ok := vars[name]
		return value, ok
	}
}

// connect connects now, or fails the test.
func connect(t *testing.T, c *Config, lookup func(string) (string, bool), more ...nats.Option) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	d, err := New(c, lookup)
	require.NoError(t, err)
	nc, js, err := d.Connect(t.Name(), append(more, nats.RetryOnFailedConnect(false))...)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	require.NoError(t, nc.Flush())
	return nc, js
}

// refused fails the test if the server lets c in.
func refused(t *testing.T, c *Config, lookup func(string) (string, bool)) {
	t.Helper()
	d, err := New(c, lookup)
	require.NoError(t, err)
	_, _, err = d.Connect(t.Name(), nats.RetryOnFailedConnect(false))
	require.Error(t, err)
}

// userOf is the user that the server knows nc by.
func userOf(t *testing.T, srv *natstest.Server, nc *nats.Conn) string {
	t.Helper()
	cid, err := nc.GetClientID()
	require.NoError(t, err)
	z, err := srv.Raw().Connz(&server.ConnzOptions{CID: cid, Username: true})
	require.NoError(t, err)
	require.Len(t, z.Conns, 1)
	require.Equal(t, t.Name(), z.Conns[0].Name)
	return z.Conns[0].AuthorizedUser
}

// failuresTo sends to c why the server or we refused a connection.
func failuresTo(c chan<- error) nats.Option {
	return nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		select {
		case c <- err:
		default:
		}
	})
}

// receive waits for what must come.
func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatal("nothing came in 20 seconds")
		panic("unreachable")
	}
}

func TestConnect_UserAndPassword(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, func(o *server.Options) { o.Username, o.Password = "ada", "lovelace" })
	url := URLs{srv.URL()}
	nc, _ := connect(t, &Config{URL: url, User: "ada", Password: "lovelace"}, none)
	require.Equal(t, "ada", userOf(t, srv, nc))

	with := URLs{"nats://ada:lovelace@" + srv.Raw().Addr().String()}
	connect(t, &Config{URL: with}, none)
	connect(t, &Config{URL: with}, environ(map[string]string{"NATS_USER": "bob", "NATS_PASSWORD": "x"}))
	connect(t, &Config{User: "ada"}, environ(map[string]string{"NATS_URL": srv.URL(), "NATS_PASSWORD": "lovelace"}))
	connect(t, &Config{Password: "lovelace"}, environ(map[string]string{"NATS_URL": srv.URL(), "NATS_USER": "ada"}))
	connect(t, &Config{User: "ada", Password: "lovelace"}, environ(map[string]string{"NATS_URL": "nats://bob:x@" + srv.Raw().Addr().String()}))
	refused(t, &Config{URL: url}, none)
	refused(t, &Config{URL: url, User: "ada", Password: "byron"}, none)
}

func TestConnect_Token(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, func(o *server.Options) { o.Authorization = "s3cret" })
	url := URLs{srv.URL()}
	connect(t, &Config{URL: url, Token: "s3cret"}, none)
	connect(t, &Config{URL: URLs{"nats://s3cret@" + srv.Raw().Addr().String()}}, none)
	connect(t, &Config{URL: url}, environ(map[string]string{"NATS_TOKEN": "s3cret"}))
	connect(t, &Config{URL: url}, environ(map[string]string{"NATS_USER": "s3cret"}))
	refused(t, &Config{URL: url}, none)
}

func TestConnect_NKey(t *testing.T) {
	t.Parallel()
	id, seed := newNKey(t)
	srv := natstest.Start(t, func(o *server.Options) { o.Nkeys = []*server.NkeyUser{{Nkey: id}} })
	path := write(t, "user.nk", append(seed, '\n'))
	nc, _ := connect(t, &Config{URL: URLs{srv.URL()}, NKey: path}, none)
	require.Equal(t, id, userOf(t, srv, nc))
	connect(t, &Config{}, environ(map[string]string{"NATS_URL": srv.URL(), "NATS_NKEY": path}))
	refused(t, &Config{URL: URLs{srv.URL()}}, none)

	_, other := newNKey(t)
	refusal := make(chan error, 16)
	nc, _ = connect(t, &Config{URL: URLs{srv.URL()}, NKey: path}, none,
		nats.ReconnectWait(10*time.Millisecond), nats.ReconnectJitter(0, 0),
		failuresTo(refusal))
	rewrite(t, path, other)
	require.NoError(t, nc.ForceReconnect())
	require.ErrorContains(t, receive(t, refusal), "holds another key than at the start; restart to use it")
}

// Credentials that are revoked cut the connection; new ones in the same file
// bring it back, without a restart.
func TestConnect_RotatedCredentials(t *testing.T) {
	t.Parallel()
	op := newOperator(t)
	srv := natstest.Start(t, op.rule)
	first, content := op.creds(nil)
	path := write(t, "user.creds", content)
	reconnected := make(chan *nats.Conn, 1)
	failed := make(chan error, 16)
	nc, _ := connect(t, &Config{URL: URLs{srv.URL()}, Creds: path}, none,
		nats.ReconnectWait(10*time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.ReconnectHandler(func(nc *nats.Conn) { reconnected <- nc }),
		failuresTo(failed))
	require.Equal(t, first, userOf(t, srv, nc))

	account, err := srv.Raw().LookupAccount(op.accountID)
	require.NoError(t, err)
	claims, err := jwt.DecodeAccountClaims(op.accountJWT)
	require.NoError(t, err)
	claims.Revoke(first)
	srv.Raw().UpdateAccountClaims(account, claims)
	for range 3 { // two refusals would end a connection that is not ours
		err = receive(t, failed)
	}
	rewrite(t, path, []byte("half a fi"))
	for !strings.Contains(err.Error(), "nats.creds: "+path+" holds no JWT of a user") {
		err = receive(t, failed) // those about the revoked user come first
	}

	second, content := op.creds(nil)
	rewrite(t, path, content)
	require.Equal(t, second, userOf(t, srv, receive(t, reconnected)))
}

func TestConnect_BearerToken(t *testing.T) {
	t.Parallel()
	op := newOperator(t)
	srv := natstest.Start(t, op.rule)
	id, token, _ := op.user(func(c *jwt.UserClaims) { c.BearerToken = true })
	nc, _ := connect(t, &Config{URL: URLs{srv.URL()}}, environ(map[string]string{"NATS_JWT": token}))
	require.Equal(t, id, userOf(t, srv, nc))

	id, token, seed := op.user(nil)
	nc, _ = connect(t, &Config{URL: URLs{srv.URL()}}, environ(map[string]string{"NATS_JWT": token, "NATS_SEED": string(seed)}))
	require.Equal(t, id, userOf(t, srv, nc))
}

// The server asks for a client certificate; a new one in the same files is
// shown at the next reconnect, and a new CA is trusted.
func TestConnect_RotatedCertificate(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{false, true} {
		t.Run(map[bool]string{false: "TLS", true: "TLSFirst"}[first], func(t *testing.T) {
			t.Parallel()
			ca := newAuthority(t)
			names := make(chan string, 100)
			srv := natstest.Start(t, func(o *server.Options) {
				o.TLSConfig, o.TLSHandshakeFirst = ca.serverTLS(names), first
			})
			cert, key := ca.issue("spring", time.Now().Add(time.Hour))
			c := &Config{URL: URLs{srv.Raw().Addr().String()}, TLS: TLS{
				CA: write(t, "ca.pem", ca.pem), Cert: write(t, "cert.pem", cert), Key: write(t, "key.pem", key), First: first,
			}}
			reconnected := make(chan *nats.Conn, 1)
			nc, _ := connect(t, c, none,
				nats.ReconnectWait(10*time.Millisecond), nats.ReconnectJitter(0, 0),
				nats.ReconnectHandler(func(nc *nats.Conn) { reconnected <- nc }))
			require.Equal(t, "spring", receive(t, names))
			state, err := nc.TLSConnectionState()
			require.NoError(t, err)
			require.GreaterOrEqual(t, state.Version, uint16(tls.VersionTLS12))

			cert, key = ca.issue("autumn", time.Now().Add(time.Hour))
			rewrite(t, c.TLS.Cert, cert)
			rewrite(t, c.TLS.Key, key)
			require.NoError(t, nc.ForceReconnect())
			receive(t, reconnected)
			require.Equal(t, "autumn", receive(t, names))

			rewrite(t, c.TLS.CA, newAuthority(t).pem) // the server is a stranger now
			refused(t, c, none)
			rewrite(t, c.TLS.CA, append(newAuthority(t).pem, ca.pem...))
			connect(t, c, none)
			connect(t, &Config{TLS: TLS{First: first}}, environ(map[string]string{
				"NATS_URL": "tls://" + srv.Raw().Addr().String(), "NATS_CA": c.TLS.CA, "NATS_CERT": c.TLS.Cert, "NATS_KEY": c.TLS.Key,
			}))
		})
	}
}

// Who sets a CA wants TLS: a server without it is not talked to.
func TestConnect_CARefusesPlainServers(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, nil)
	refused(t, &Config{URL: URLs{srv.URL()}, TLS: TLS{CA: write(t, "ca.pem", newAuthority(t).pem)}}, none)
}

func TestConnect_StartsWithoutServer(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, nil)
	url := srv.URL()
	srv.Stop()
	d, err := New(&Config{URL: URLs{url}}, none)
	require.NoError(t, err)
	connected := make(chan *nats.Conn, 1)
	nc, _, err := d.Connect("early", nats.ReconnectWait(10*time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.ConnectHandler(func(nc *nats.Conn) { connected <- nc }))
	require.NoError(t, err)
	defer nc.Close()
	require.False(t, nc.IsConnected())
	srv.Start()
	receive(t, connected)

	srv.Stop()
	_, _, err = d.Connect("now or never", nats.RetryOnFailedConnect(false))
	require.ErrorContains(t, err, "NATS cannot be reached at "+url)
	require.ErrorIs(t, err, nats.ErrNoServers)
}

func TestConnect_DomainPrefixAndInbox(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, func(o *server.Options) { o.JetStreamDomain = "hub" })
	for _, c := range []*Config{
		{},
		{Domain: "hub", InboxPrefix: "_INBOX_edge"},
		{APIPrefix: "$JS.hub.API", InboxPrefix: "_INBOX_edge."},
	} {
		c.URL = URLs{srv.URL()}
		nc, js := connect(t, c, none)
		_, err := js.AccountInfo(t.Context())
		require.NoError(t, err)
		if c.InboxPrefix != "" {
			require.Regexp(t, `^_INBOX_edge\.[^.]`, nc.NewInbox())
		}
	}
	_, js := connect(t, &Config{URL: URLs{srv.URL()}, Domain: "leaf"}, none)
	_, err := js.AccountInfo(t.Context())
	require.Error(t, err)
}

func TestDialer_Servers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		c    Config
		env  map[string]string
		want []string
	}{
		{want: []string{"nats://localhost:4222"}},
		{env: map[string]string{"NATS_URL": "a, tls://b:1"}, want: []string{"nats://a", "tls://b:1"}},
		{c: Config{URL: URLs{"c:4222"}}, env: map[string]string{"NATS_URL": "a"}, want: []string{"nats://c:4222"}},
		{c: Config{URL: URLs{"nats://ada:pw@c", "nats://t0ken@d"}}, want: []string{"nats://xxxxx@c", "nats://xxxxx@d"}},
		{c: Config{Token: "x"}, env: map[string]string{"NATS_URL": "nats://ada:pw@c"}, want: []string{"nats://c"}},
		{c: Config{URL: URLs{"wss://c"}}, want: []string{"wss://c"}},
	} {
		d, err := New(&test.c, environ(test.env))
		require.NoError(t, err)
		require.Equal(t, test.want, d.Servers())
	}
}

func TestDialer_Expiry(t *testing.T) {
	t.Parallel()
	op, ca := newOperator(t), newAuthority(t)
	hour := time.Now().Add(time.Hour).Truncate(time.Second)
	_, lasting := op.creds(nil)
	_, ending := op.creds(func(c *jwt.UserClaims) { c.Expires = hour.Unix() })
	_, ended := op.creds(func(c *jwt.UserClaims) { c.Expires = hour.Add(-48 * time.Hour).Unix() })
	cert, key := ca.issue("edge", hour.Add(-time.Minute))
	tls := TLS{Cert: write(t, "cert.pem", cert), Key: write(t, "key.pem", key)}
	path := write(t, "user.creds", ending)
	for _, test := range []struct {
		name  string
		c     Config
		creds []byte
		what  string
		at    time.Time
	}{
		{"Nothing", Config{}, lasting, "", time.Time{}},
		{"CredentialsWithoutEnd", Config{Creds: path}, lasting, "", time.Time{}},
		{"Credentials", Config{Creds: path}, ending, "the credentials in " + path, hour},
		{"Expired", Config{Creds: path}, ended, "the credentials in " + path, hour.Add(-48 * time.Hour)},
		{"Certificate", Config{TLS: tls}, lasting, "the client certificate in " + tls.Cert, hour.Add(-time.Minute)},
		{"BothCertificateFirst", Config{Creds: path, TLS: tls}, ending, "the client certificate in " + tls.Cert, hour.Add(-time.Minute)},
		{"BothCredentialsFirst", Config{Creds: path, TLS: tls}, ended, "the credentials in " + path, hour.Add(-48 * time.Hour)},
	} {
		rewrite(t, path, test.creds)
		d, err := New(&test.c, none)
		require.NoError(t, err, test.name)
		what, at, ok := d.Expiry()
		require.Equal(t, test.what != "", ok, test.name)
		require.Equal(t, test.what, what, test.name)
		require.True(t, test.at.Equal(at), "%s: %v", test.name, at)
	}

	_, token, seed := op.user(func(c *jwt.UserClaims) { c.Expires = hour.Unix() })
	d, err := New(&Config{}, environ(map[string]string{"NATS_JWT": token, "NATS_SEED": string(seed)}))
	require.NoError(t, err)
	what, at, ok := d.Expiry()
	require.True(t, ok)
	require.Equal(t, "the credentials in NATS_JWT", what)
	require.True(t, hour.Equal(at))
}
