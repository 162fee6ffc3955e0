package main

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"testing"

	"edge.example/inbox"
	"edge.example/inbox/internal/natstest"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

func TestAudit_ComparesWithTheLiveStream(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, nil)
	nc, js := srv.Connect()
	ctx := t.Context()
	config := jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}
	_, err := js.CreateStream(ctx, config)
	require.NoError(t, err)
	db := filepath.Join(t.TempDir(), "orders.db")
	for _, id := range []string{"a", "b", "c"} {
		_, err := js.Publish(ctx, "orders.new", nil, jetstream.WithMsgID(id))
		require.NoError(t, err)
	}
	consume(t, db, js, 3)
	_, err = js.Publish(ctx, "orders.new", nil)
	require.NoError(t, err)
	require.NoError(t, nc.Flush())

	report, code, stderr := auditJSON(t, "--db", db, "--nats", srv.URL())
	require.Equal(t, exitOK, code, stderr)
	require.True(t, report.Holds)
	require.Len(t, report.Streams, 1)
	s := report.Streams[0]
	require.True(t, s.Compared)
	require.EqualValues(t, 3, s.Completed)
	require.EqualValues(t, 1, s.Waiting)
	require.Equal(t, []inbox.Interval{{First: 1, Last: 3}}, s.Accounted)
	require.NotNil(t, s.Missing)
	require.NotNil(t, s.OnBroker)

	require.NoError(t, js.DeleteStream(ctx, "ORDERS"))
	_, err = js.CreateStream(ctx, config)
	require.NoError(t, err)
	report, code, stderr = auditJSON(t, "--db", db, "--nats", srv.URL())
	require.Equal(t, exitFailure, code)
	require.Contains(t, stderr, "made anew")
	require.False(t, report.Holds)
	require.NotEmpty(t, report.Streams[0].Error)

	url := srv.URL()
	srv.Stop()
	_, code, stderr = auditJSON(t, "--db", db, "--nats", url)
	require.Equal(t, exitFailure, code)
	require.Contains(t, stderr, "NATS cannot be reached at "+url)
}

// auditJSON runs audit --json; the report is nil when there is none.
func auditJSON(t *testing.T, args ...string) (report *auditReport, code int, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{"audit", "--json"}, args...), nil, &out, &errs)
	if out.Len() > 0 {
		require.NoError(t, json.Unmarshal(out.Bytes(), &report))
	}
	return report, code, errs.String()
}

// consume takes n messages into db.
func consume(t *testing.T, db string, js jetstream.JetStream, n int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	outcomes := make(chan inbox.Outcome, n)
	ib, err := inbox.Open(ctx, db, &inbox.Options{
		Observer: &inbox.Observer{Delivered: func(_ string, o inbox.Outcome) { outcomes <- o }},
	})
	require.NoError(t, err)
	c, err := ib.Consumer("orders", func(context.Context, *inbox.Tx, *inbox.Message) error { return nil }, nil)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- c.Subscribe(ctx, js, "ORDERS", nil) }()
	for range n {
		require.Equal(t, inbox.Applied, <-outcomes)
	}
	cancel()
	require.NoError(t, <-ended)
	require.NoError(t, ib.Close())
}

func TestIntervals(t *testing.T) {
	t.Parallel()
	var many []inbox.Interval
	for i := range uint64(7) {
		many = append(many, inbox.Interval{First: 10 * i, Last: 10*i + i%2})
	}
	for _, tt := range []struct {
		ivs  []inbox.Interval
		want string
	}{
		{nil, "none"},
		{[]inbox.Interval{{First: 1, Last: 1}}, "1"},
		{[]inbox.Interval{{First: 1, Last: 20}, {First: 22, Last: 23}}, "1-20, 22-23"},
		{many, "0, 10-11, 20, 30-31, 40, 50-51, 60"},
		{append(many, inbox.Interval{First: 70, Last: 71}), "0, 10-11, 20, (2 more), 50-51, 60, 70-71"},
	} {
		require.Equal(t, tt.want, intervals(tt.ivs))
	}
}

func TestShellQuote(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"/tmp/a-b/demo.db": "/tmp/a-b/demo.db",
		"/tmp/a b/demo.db": "'/tmp/a b/demo.db'",
		"it's":             `'it'\''s'`,
		"":                 "''",
	} {
		require.Equal(t, want, shellQuote(in))
	}
}
