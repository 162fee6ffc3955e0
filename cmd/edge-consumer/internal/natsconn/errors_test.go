package natsconn

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

// secret is in every place of the tests below where a secret belongs.
const secret = "hunter2"

func TestNew_Errors(t *testing.T) {
	t.Parallel()
	op, ca := newOperator(t), newAuthority(t)
	_, creds := op.creds(nil)
	_, other := op.creds(nil)
	_, token, _ := op.user(nil)
	_, seed := newNKey(t)
	cert, key := ca.issue("edge", time.Now().Add(time.Hour))
	_, otherKey := ca.issue("edge", time.Now().Add(time.Hour))
	parts := strings.SplitAfter(string(creds), "END NATS USER JWT------\n")
	otherParts := strings.SplitAfter(string(other), "END NATS USER JWT------\n")

	dir := t.TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		rewrite(t, path, content)
		return path
	}
	var (
		goodCreds = file("good.creds", creds)
		mixed     = file("mixed.creds", []byte(parts[0]+otherParts[1]))
		noSeed    = file("noseed.creds", []byte(token))
		seedFile  = file("user.nk", seed)
		garbage   = file("garbage", []byte("garbage "+secret))
		certFile  = file("cert.pem", cert)
		keyFile   = file("key.pem", key)
		wrongKey  = file("wrong.pem", otherKey)
		absent    = filepath.Join(dir, "absent")
	)
	h := newHome(t)
	for name, fields := range map[string]map[string]any{
		"op":       {"password": "op://vault/item/" + secret, "user": "ada"},
		"opcreds":  {"creds": "op://vault/item/" + secret},
		"nsc":      {"nsc": "nsc://o/a/u"},
		"nscref":   {"creds": "nsc://o/a/u"},
		"windows":  {"windows_cert_store": "user", "windows_cert_match": "x"},
		"socks":    {"socks_proxy": "socks5://ada:" + secret + "@proxy"},
		"env":      {"token": "env://UNSET"},
		"data":     {"creds": "data:" + secret},
		"inline":   {"nkey": "data:;base64,Z2FyYmFnZQ=="},
		"cainline": {"ca": "data:;base64,Z2FyYmFnZQ=="},
		"two":      {"creds": goodCreds, "user_jwt": token},
		"three":    {"nkey": seedFile, "token": secret},
		"absent":   {"ca": absent},
		"number":   {"password": 42},
		"url":      {"url": "nats://ada:hunter/2" + secret + "@host"},
		"domain":   {"jetstream_domain": "a.b"},
	} {
		h.context(name, fields)
	}
	rewrite(t, filepath.Join(h.dir, ".config/nats/context/broken.json"), []byte(`{"token": "`+secret))
	in := func(field, context string) string { return fmt.Sprintf("%s of the context %q", field, context) }

	for name, test := range map[string]struct {
		c    Config
		env  map[string]string
		want []string // parts of the error
	}{
		"CredsAbsent":  {c: Config{Creds: absent}, want: []string{"nats.creds: open " + absent}},
		"CredsGarbage": {c: Config{Creds: garbage}, want: []string{"nats.creds: " + garbage + " holds no JWT of a user"}},
		"CredsSeed":    {c: Config{Creds: seedFile}, want: []string{"nats.creds: ", "holds no JWT of a user"}},
		"CredsNoSeed":  {c: Config{Creds: noSeed}, want: []string{"nats.creds: ", "holds no key of a user"}},
		"CredsMixed":   {c: Config{Creds: mixed}, want: []string{"nats.creds: ", "the key is another user's"}},
		"NKeyAbsent":   {c: Config{NKey: absent}, want: []string{"nats.nkey: open " + absent}},
		"NKeyGarbage":  {c: Config{NKey: garbage}, want: []string{"nats.nkey: " + garbage + " holds no seed of a user's nkey"}},
		"CAAbsent":     {c: Config{TLS: TLS{CA: absent}}, want: []string{"nats.tls.ca: open " + absent}},
		"CAGarbage":    {c: Config{TLS: TLS{CA: garbage}}, want: []string{"nats.tls.ca: " + garbage + " holds no PEM certificate"}},
		"CertAbsent":   {c: Config{TLS: TLS{Cert: absent, Key: keyFile}}, want: []string{"nats.tls.cert: open " + absent}},
		"KeyAbsent":    {c: Config{TLS: TLS{Cert: certFile, Key: absent}}, want: []string{"nats.tls.key: open " + absent}},
		"KeyWrong":     {c: Config{TLS: TLS{Cert: certFile, Key: wrongKey}}, want: []string{"nats.tls.cert, nats.tls.key: ", "does not match"}},
		"KeyGarbage":   {c: Config{TLS: TLS{Cert: certFile, Key: garbage}}, want: []string{"nats.tls.cert, nats.tls.key: "}},
		"CertAlone":    {c: Config{TLS: TLS{Cert: certFile}}, want: []string{"nats.tls.cert: the certificate has no key"}},
		"KeyAlone":     {c: Config{TLS: TLS{Key: keyFile}}, want: []string{"nats.tls.key: the key has no certificate"}},
		"EmptyPath":    {c: Config{Creds: "$UNSET"}, want: []string{"nats.creds: nothing is left of $UNSET"}},

		"CredsAndUser":   {c: Config{Creds: goodCreds, User: "ada", Password: secret}, want: []string{"nats.creds and nats.user are both set"}},
		"UserAndToken":   {c: Config{User: "ada", Token: secret}, want: []string{"nats.user and nats.token are both set"}},
		"URLAndToken":    {c: Config{URL: URLs{"nats://" + secret + "@h"}, Token: secret}, want: []string{"nats.url (the user in it) and nats.token are both set"}},
		"PasswordAlone":  {c: Config{Password: secret}, want: []string{"nats.password: the password has no user"}},
		"UserAlone":      {c: Config{User: "ada"}, want: []string{"nats.user: the user has no password"}},
		"DomainAndAPI":   {c: Config{Domain: "a", APIPrefix: "b"}, want: []string{"nats.domain and nats.api_prefix are both set"}},
		"Domain":         {c: Config{Domain: "a.b"}, want: []string{`nats.domain: "a.b"`}},
		"APIPrefix":      {c: Config{APIPrefix: "$JS.*"}, want: []string{`nats.api_prefix: "$JS.*"`}},
		"InboxPrefix":    {c: Config{InboxPrefix: "a b"}, want: []string{`nats.inbox_prefix: "a b"`}},
		"SeveralAtOnce":  {c: Config{Creds: absent, TLS: TLS{CA: absent}}, want: []string{"nats.creds: ", "nats.tls.ca: "}},
		"SeveralOfTwo":   {c: Config{Domain: "a", APIPrefix: "b"}, env: map[string]string{"NATS_URL": "http://h"}, want: []string{"nats.domain", "NATS_URL"}},
		"EnvCredsAbsent": {env: map[string]string{"NATS_CREDS": absent}, want: []string{"NATS_CREDS: open " + absent}},
		"EnvTwo":         {env: map[string]string{"NATS_CREDS": goodCreds, "NATS_TOKEN": secret}, want: []string{"NATS_CREDS and NATS_TOKEN are both set"}},
		"EnvCredsAndJWT": {env: map[string]string{"NATS_CREDS": goodCreds, "NATS_JWT": token}, want: []string{"NATS_CREDS and NATS_JWT are both set"}},
		"EnvJWTBadSeed":  {env: map[string]string{"NATS_JWT": token, "NATS_SEED": secret}, want: []string{"NATS_JWT and NATS_SEED: "}},
		"EnvPassword":    {env: map[string]string{"NATS_PASSWORD": secret}, want: []string{"NATS_PASSWORD: the password has no user"}},
		"EnvProxy":       {env: map[string]string{"NATS_SOCKS_PROXY": "socks5://ada:" + secret + "@h"}, want: []string{"NATS_SOCKS_PROXY: SOCKS proxies are not supported"}},
		"EnvContext":     {env: map[string]string{"NATS_CONTEXT": "nowhere"}, want: []string{`NATS_CONTEXT: there is no context "nowhere"`}},
		"EnvHome":        {c: Config{Context: "x"}, env: map[string]string{"HOME": dir}, want: []string{"nats.context: ", "there is none at all"}},

		"URLScheme":   {c: Config{URL: URLs{"http://h"}}, want: []string{"nats.url: a URL starts with nats://", "not with http://"}},
		"URLHost":     {c: Config{URL: URLs{"nats://:4222"}}, want: []string{"nats.url: a URL without a host"}},
		"URLPort":     {c: Config{URL: URLs{"nats://h:port"}}, want: []string{"nats.url: not a URL like"}},
		"URLSlash":    {c: Config{URL: URLs{"nats://ada:1/" + secret + "@h"}}, want: []string{"nats.url: not a URL like", "%-encoded"}},
		"URLPercent":  {c: Config{URL: URLs{"nats://ada:%" + secret + "@h"}}, want: []string{"nats.url: not a URL like"}},
		"URLComma":    {c: Config{URL: URLs{"nats://ada:1," + secret + "@h"}}, want: []string{"nats.url: not a URL like"}},
		"URLMixed":    {c: Config{URL: URLs{"ws://a", "nats://b"}}, want: []string{"nats.url: URLs with ws:// or wss:// cannot be mixed"}},
		"EnvURL":      {env: map[string]string{"NATS_URL": "nats://ada:#" + secret + "@h"}, want: []string{"NATS_URL: not a URL like"}},
		"ContextURL":  {c: Config{Context: "url"}, want: []string{in("url", "url") + ": not a URL like"}},
		"Unknown":     {c: Config{Context: "nowhere"}, want: []string{`nats.context: there is no context "nowhere" in `, "there are: absent, broken, cainline, data"}},
		"NoFile":      {c: Config{Context: absent + ".json"}, want: []string{"nats.context: ", absent + ".json"}},
		"NoName":      {c: Config{Context: "../x"}, want: []string{`nats.context: "../x" cannot be the name of a context`}},
		"Unselected":  {c: Config{Context: "selected"}, want: []string{"nats.context: no context is selected in ", "nats context select"}},
		"Broken":      {c: Config{Context: "broken"}, want: []string{"nats.context: ", "broken.json is no context of the nats CLI"}},
		"Number":      {c: Config{Context: "number"}, want: []string{"number.json is no context of the nats CLI", "password"}},
		"OnePassword": {c: Config{Context: "op"}, want: []string{in("password", "op") + ": the secret is kept by 1Password", "env://NAME"}},
		"OpCreds":     {c: Config{Context: "opcreds"}, want: []string{in("creds", "opcreds") + ": the secret is kept by 1Password"}},
		"NSC":         {c: Config{Context: "nsc"}, want: []string{in("nsc", "nsc") + ": the secret is kept by nsc", "nsc generate creds"}},
		"NSCCreds":    {c: Config{Context: "nscref"}, want: []string{in("creds", "nscref") + ": the secret is kept by nsc"}},
		"Windows":     {c: Config{Context: "windows"}, want: []string{in("windows_cert_store", "windows") + ": ", "PEM files"}},
		"SOCKS":       {c: Config{Context: "socks"}, want: []string{in("socks_proxy", "socks") + ": SOCKS proxies are not supported"}},
		"EnvUnset":    {c: Config{Context: "env"}, want: []string{in("token", "env") + ": the environment variable UNSET is not set"}},
		"Data":        {c: Config{Context: "data"}, want: []string{in("creds", "data") + ": after data: there must be"}},
		"Inline":      {c: Config{Context: "inline"}, want: []string{in("nkey", "inline") + ": it holds no seed"}},
		"CAInline":    {c: Config{Context: "cainline"}, want: []string{in("ca", "cainline") + ": it holds no PEM certificate"}},
		"TwoKinds":    {c: Config{Context: "two"}, want: []string{in("creds", "two") + " and " + in("user_jwt", "two") + " are both set"}},
		"ThreeKinds":  {c: Config{Context: "three"}, want: []string{in("nkey", "three") + " and " + in("token", "three") + " are both set"}},
		"ContextCA":   {c: Config{Context: "absent"}, want: []string{in("ca", "absent") + ": open " + absent}},
		"ContextJS":   {c: Config{Context: "domain"}, want: []string{in("jetstream_domain", "domain") + `: "a.b"`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, err := New(&test.c, h.environ(test.env))
			require.Error(t, err)
			require.Nil(t, d)
			for _, part := range test.want {
				require.ErrorContains(t, err, part)
			}
			require.NotContains(t, err.Error(), secret)
			require.NotContains(t, err.Error(), string(seed))
		})
	}
}

// printed is v in every way that something is printed.
func printed(t *testing.T, v any) string {
	var all bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%t"} {
		fmt.Fprintf(&all, verb+"\n", v)
	}
	slog.New(slog.NewTextHandler(&all, nil)).Info("text", "v", v)
	slog.New(slog.NewJSONHandler(&all, nil)).Info("json", "v", v)
	b, err := json.Marshal(v)
	require.NoError(t, err)
	all.Write(b)
	b, err = yaml.Marshal(v)
	require.NoError(t, err)
	all.Write(b)
	return all.String()
}

func TestConfig_PrintsNoSecret(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{
		{Context: "edge", User: "ada", Password: secret},
		{Token: secret},
		{URL: URLs{"nats://ada:" + secret + "@a", "nats://" + secret + "@b"}},
		{URL: URLs{"nats://ada:1/" + secret + "@a"}},
		{URL: URLs{"nats://ada:" + secret + ",x@a"}},
	} {
		for _, v := range []any{c, &c, c.URL, c.Password, c.Token, []any{c}} {
			require.NotContains(t, printed(t, v), secret)
			require.NotContains(t, printed(t, v), fmt.Sprintf("%x", secret))
		}
	}
	require.Contains(t, printed(t, Config{Context: "edge", User: "ada", Password: secret}), "(hidden)")
	require.NotContains(t, printed(t, Config{User: "ada"}), "(hidden)")

	d, err := New(&Config{User: "ada", Password: secret}, none)
	require.NoError(t, err)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d"} {
		require.Equal(t, "nats://localhost:4222", fmt.Sprintf(verb, d))
	}
}

// Whatever is in a password, encoded or not, it is not printed and not in an
// error.
func TestNew_HidesPasswordsInURLs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		password := rapid.StringMatching(`[a-c/:#?%@,&. \[\]]{0,3}`+secret+`[a-c/:#?%@,&. \[\]]{0,3}`).Draw(t, "password")
		c := Config{URL: URLs{"nats://ada:" + password + "@host:4222"}}
		if rapid.Bool().Draw(t, "token") {
			c.URL = URLs{"nats://" + password + "@host:4222"}
		}
		text := fmt.Sprintf("%v %+v %#v", c, c, c.URL)
		if d, err := New(&c, none); err != nil {
			text += err.Error()
		} else {
			text += fmt.Sprint(d, d.Servers())
		}
		if strings.Contains(text, secret) {
			t.Fatalf("%q", text)
		}
	})
}

func TestConfig_YAML(t *testing.T) {
	t.Parallel()
	var c Config
	require.NoError(t, yaml.Unmarshal([]byte(`
url: nats://a:4222,nats://b:4222
context: edge
creds: a.creds
nkey: a.nk
user: ada
password: 42
token: t
tls: {ca: ca.pem, cert: cert.pem, key: key.pem, first: true}
inbox_prefix: _INBOX_x
domain: hub
api_prefix: $JS.hub.API
`), &c))
	require.Equal(t, Config{
		URL: URLs{"nats://a:4222,nats://b:4222"}, Context: "edge", Creds: "a.creds", NKey: "a.nk",
		User: "ada", Password: "42", Token: "t", TLS: TLS{"ca.pem", "cert.pem", "key.pem", true},
		InboxPrefix: "_INBOX_x", Domain: "hub", APIPrefix: "$JS.hub.API",
	}, c)
	require.NoError(t, yaml.Unmarshal([]byte("url: [nats://a, nats://b]"), &c))
	require.Equal(t, URLs{"nats://a", "nats://b"}, c.URL)
	require.NoError(t, yaml.Unmarshal([]byte(`url: ""`), &c))
	require.Empty(t, c.URL)
	require.Error(t, yaml.Unmarshal([]byte("url: {a: b}"), &c))
}
