package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edge.example/inbox"
	"edge.example/inbox/cmd/edge-consumer/internal/config"
	"edge.example/inbox/cmd/edge-consumer/internal/natsconn"
	"edge.example/inbox/internal/natstest"
	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"
)

// findingOf is the finding about check.
func findingOf(t *testing.T, x *examination, check string) finding {
	t.Helper()
	for _, f := range x.findings {
		if f.Check == check {
			return f
		}
	}
	require.Failf(t, "no finding", "%s in %v", check, x.findings)
	return finding{}
}

func TestDoctor_JSONKeys(t *testing.T) {
	t.Parallel()
	x := &examination{}
	x.add(levelWarning, "clock", "late", "set it")
	text, err := json.Marshal(x.report())
	require.NoError(t, err)
	var got map[string]any
	require.NoError(t, json.Unmarshal(text, &got))
	documented(t, got)
}

// TestDoctor_OneLineEach: nothing that was found can forge a line.
func TestDoctor_OneLineEach(t *testing.T) {
	t.Parallel()
	x := &examination{}
	x.add(levelOK, "clock", "two\nlines\x1b[2J", "")
	var b strings.Builder
	require.NoError(t, x.report().print(&b))
	require.Equal(t, "OK - 0 critical, 0 warning, 1 ok, 0 skipped\nOK    clock  two\\nlines\\x1b[2J\n", b.String())
	require.NoError(t, x.report().verdict())
}

func TestDoctor_Clock(t *testing.T) {
	t.Parallel()
	at := time.Now()
	for _, tt := range []struct {
		name         string
		server       time.Time
		took         time.Duration
		level        level
		detail, then string
	}{
		{"the same", at.Add(time.Second), 2 * time.Second, levelOK, "0s ahead of the broker's, to within 1s", ""},
		{"ahead", at.Add(-time.Hour), 0, levelWarning, "1h0m0s ahead of the broker's, to within 0s", "NTP"},
		{"behind", at.Add(time.Minute), 0, levelWarning, "1m0s behind the broker's, to within 0s", "NTP"},
		{"a slow answer proves nothing", at.Add(-4 * time.Second), 10 * time.Second, levelOK, "9s ahead of the broker's, to within 5s", ""},
		{"nobody to ask", time.Time{}, 0, levelSkipped, "no stream", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			x := &examination{}
			x.clock(&clockReading{at, at.Add(tt.took), tt.server.Round(0)})
			f := findingOf(t, x, "clock")
			require.Equal(t, tt.level, f.Level)
			require.Contains(t, f.Detail, tt.detail)
			require.Contains(t, f.Remedy, tt.then)
		})
	}
}

// credsFile is a credentials file that ends at a time.
func credsFile(t *testing.T, ends time.Time) string {
	t.Helper()
	creds, _ := credentials(t, ends)
	path := filepath.Join(t.TempDir(), "edge.creds")
	require.NoError(t, os.WriteFile(path, creds, 0o600))
	return path
}

// credentials are those of a user of its own account, and the user's seed. They
// end at a time, or never, when it is zero.
func credentials(t *testing.T, ends time.Time) (creds, seed []byte) {
	t.Helper()
	account, err := nkeys.CreateAccount()
	require.NoError(t, err)
	user, err := nkeys.CreateUser()
	require.NoError(t, err)
	public, err := user.PublicKey()
	require.NoError(t, err)
	seed, err = user.Seed()
	require.NoError(t, err)
	claims := jwt.NewUserClaims(public)
	if !ends.IsZero() {
		claims.Expires = ends.Unix()
	}
	token, err := claims.Encode(account)
	require.NoError(t, err)
	creds, err = jwt.FormatUserConfig(token, seed)
	require.NoError(t, err)
	return creds, seed
}

func noEnvironment(string) (string, bool) { return "", false }

func TestDoctor_Credentials(t *testing.T) {
	t.Parallel()
	now := time.Now()
	path := credsFile(t, now.Add(30*24*time.Hour))
	d, err := natsconn.New(&natsconn.Config{Creds: path}, noEnvironment)
	require.NoError(t, err)
	for _, tt := range []struct {
		after  time.Duration
		level  level
		detail string
	}{
		{0, levelOK, "end at"},
		{17 * 24 * time.Hour, levelWarning, "end in 1"},
		{31 * 24 * time.Hour, levelCritical, "ended at"},
	} {
		x := &examination{cfg: &config.Config{}, dialer: d, now: func() time.Time { return now.Add(tt.after) }}
		f := func() finding { x.expiry(); return findingOf(t, x, "credentials") }()
		require.Equal(t, tt.level, f.Level, f)
		require.Contains(t, f.Detail, path)
		require.Contains(t, f.Detail, tt.detail)
	}
	if !unixModes {
		return
	}
	for mode, want := range map[os.FileMode]level{0o600: levelOK, 0o640: levelOK, 0o644: levelWarning, 0o602: levelWarning} {
		require.NoError(t, os.Chmod(path, mode))
		x := &examination{dialer: d}
		x.secrets("")
		require.Equal(t, want, findingOf(t, x, "secret files").Level, "%o", mode)
	}
	require.NoError(t, os.Remove(path))
	x := &examination{dialer: d}
	x.secrets("")
	require.Equal(t, levelCritical, findingOf(t, x, "secret files").Level)
}

func TestDoctor_RefusedByTheBroker(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, func(o *server.Options) { o.Username, o.Password = "edge", "right" })
	d, err := natsconn.New(&natsconn.Config{URL: natsconn.URLs{srv.URL()}, User: "edge", Password: "wrong-one"}, noEnvironment)
	require.NoError(t, err)
	x := &examination{cfg: &config.Config{Consumers: []config.Consumer{{Name: "ev"}}}, dialer: d, limit: 5 * time.Second, now: time.Now}
	x.broker(t.Context())
	f := findingOf(t, x, "broker")
	require.Equal(t, levelCritical, f.Level, f)
	require.NotContains(t, f.Detail, "wrong-one")
	require.Equal(t, levelSkipped, findingOf(t, x, "consumer ev").Level)
}

// TestDoctor_MayNotAsk: what the broker does not let us see is no fault of the
// stream, and not well either.
func TestDoctor_MayNotAsk(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "edge", Password: "x", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Deny: []string{"$JS.API.STREAM.INFO.>"}}}}}
	})
	d, err := natsconn.New(&natsconn.Config{URL: natsconn.URLs{srv.URL()}, User: "edge", Password: "x"}, noEnvironment)
	require.NoError(t, err)
	x := &examination{cfg: &config.Config{Consumers: []config.Consumer{{Name: "ev", Stream: "EV"}}}, dialer: d, limit: time.Second, now: time.Now}
	x.broker(t.Context())
	f := findingOf(t, x, "stream EV")
	require.Equal(t, levelWarning, f.Level)
	require.Regexp(t, `(?i)permissions violation.*STREAM.INFO.EV`, f.Detail)
}

func TestDoctor_WithoutJetStream(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, func(o *server.Options) { o.JetStream = false })
	d, err := natsconn.New(&natsconn.Config{URL: natsconn.URLs{srv.URL()}}, noEnvironment)
	require.NoError(t, err)
	x := &examination{cfg: &config.Config{Consumers: []config.Consumer{{Name: "ev", Stream: "EV"}}}, dialer: d, limit: 2 * time.Second, now: time.Now}
	x.broker(t.Context())
	f := findingOf(t, x, "stream EV")
	require.Equal(t, levelCritical, f.Level)
	require.Contains(t, f.Detail, "JetStream does not answer")
}

func TestDoctor_DamagedFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "edge.db")
	ib, err := inbox.Open(t.Context(), path, nil)
	require.NoError(t, err)
	require.NoError(t, ib.Close())
	require.NoError(t, query(t.Context(), path, `CREATE TABLE big AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) SELECT i, hex(randomblob(50)) x FROM n`))
	x := &examination{cfg: &config.Config{Database: config.Database{Path: path}}}
	x.database(t.Context())
	require.Equal(t, levelOK, findingOf(t, x, "database content").Level, x.findings)

	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	info, err := f.Stat()
	require.NoError(t, err)
	_, err = f.WriteAt([]byte(strings.Repeat("x", 64<<10)), info.Size()-128<<10)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	x.findings = nil
	x.database(t.Context())
	bad := findingOf(t, x, "database content")
	require.Equal(t, levelCritical, bad.Level, bad)
	require.Contains(t, bad.Detail, "damaged")
	require.Contains(t, bad.Remedy, "restore a backup")

	x.findings, x.quick = nil, true
	x.database(t.Context())
	require.Equal(t, levelSkipped, findingOf(t, x, "database content").Level)
}

// TestDoctor_ForeignFiles: a file beside the database that another user made
// stops the daemon. Giving files away needs root.
func TestDoctor_ForeignFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "edge.db")
	for _, name := range []string{path, path + "-wal"} {
		require.NoError(t, os.WriteFile(name, nil, 0o600))
	}
	if !unixModes {
		t.Skip("no owners here")
	}
	if os.Geteuid() != 0 {
		require.NoError(t, os.Chmod(dir, 0o500))
		x := &examination{}
		x.folder(dir)
		require.NoError(t, os.Chmod(dir, 0o700))
		require.Equal(t, levelCritical, findingOf(t, x, "database folder").Level)
		return
	}
	require.NoError(t, os.Chown(path, 12345, -1))
	x := &examination{}
	require.True(t, x.file(path))
	f := findingOf(t, x, "database file")
	require.Equal(t, levelCritical, f.Level)
	require.Contains(t, f.Detail, "belongs to user 12345, edge.db-wal to user 0")
	require.Contains(t, f.Remedy, "chown 12345 "+path+"-wal")
}

func TestDoctor_Subjects(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		a, b            string
		overlap, covers bool
	}{
		{"a.b", "a.b", true, true},
		{"a.b", "a.c", false, false},
		{"a.>", "a.b.c", true, true},
		{"a.b.c", "a.>", true, false},
		{"a.>", "a", false, false},
		{"a.*", "a.b", true, true},
		{"a.*", "a.>", true, false},
		{"*.b", "a.*", true, false},
		{"a.*.c", "a.b", false, false},
		{">", "x", true, true},
	} {
		require.Equal(t, tt.overlap, overlap(tt.a, tt.b), "%s %s", tt.a, tt.b)
		require.Equal(t, tt.overlap, overlap(tt.b, tt.a), "%s %s", tt.b, tt.a)
		require.Equal(t, tt.covers, covers(tt.a, tt.b), "%s %s", tt.a, tt.b)
	}
}

func TestDoctor_StreamRisks(t *testing.T) {
	t.Parallel()
	info := func(c jetstream.StreamConfig, span time.Duration) *jetstream.StreamInfo {
		last := time.Now()
		return &jetstream.StreamInfo{Config: c, State: jetstream.StreamState{Msgs: 95, Bytes: 950, FirstTime: last.Add(-span), LastTime: last}}
	}
	const hour = time.Hour
	for _, tt := range []struct {
		name  string
		info  *jetstream.StreamInfo
		risks int
	}{
		{"no limits", info(jetstream.StreamConfig{MaxBytes: -1, MaxMsgs: -1}, hour), 0},
		{"an hour", info(jetstream.StreamConfig{MaxAge: hour}, hour), 1},
		{"a week", info(jetstream.StreamConfig{MaxAge: 7 * 24 * hour}, hour), 0},
		{"nearly full", info(jetstream.StreamConfig{MaxBytes: 1000, MaxMsgs: 100}, hour), 2},
		{"nearly full, of a month", info(jetstream.StreamConfig{MaxBytes: 1000, MaxMsgs: 100}, 30*24*hour), 0},
		{"room", info(jetstream.StreamConfig{MaxBytes: 10000, MaxMsgs: 1000}, hour), 0},
		{"nearly full, refusing new ones", info(jetstream.StreamConfig{MaxMsgs: 100, Discard: jetstream.DiscardNew}, hour), 0},
		{"the last of each subject", info(jetstream.StreamConfig{MaxMsgsPerSubject: 1}, hour), 1},
	} {
		require.Len(t, streamRisks(tt.info), tt.risks, tt.name)
	}
}
