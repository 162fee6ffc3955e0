package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"edge.example/inbox"
	"github.com/stretchr/testify/require"
)

func TestDemo_JSONIsOneObjectWithItsKeys(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"demo", "--json", "--messages", "45", "--dir", t.TempDir()}, nil, &stdout, &stderr)
	require.Equal(t, exitOK, code, stderr.String())

	d := json.NewDecoder(&stdout)
	var got map[string]any
	require.NoError(t, d.Decode(&got))
	require.ErrorIs(t, d.Decode(new(any)), io.EOF)
	require.Equal(t, []string{"applied", "business_rows", "conflicts", "database", "dead", "distinct",
		"double_applied", "duplicates", "lost", "published"}, slices.Sorted(maps.Keys(got)))
	require.EqualValues(t, planned(45), got["published"])
	require.EqualValues(t, 46, got["distinct"])
	require.EqualValues(t, 45, got["applied"])
	require.EqualValues(t, 45, got["business_rows"])
	require.EqualValues(t, 1, got["dead"])
	require.EqualValues(t, 1, got["conflicts"])
	require.Greater(t, got["duplicates"], 3.0, "three are published twice, at least one is delivered again")
}

// cancelOn cancels a context when a text is written to it.
type cancelOn struct {
	bytes.Buffer
	text   string
	cancel context.CancelFunc
}

func (w *cancelOn) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(w.text)) {
		w.cancel()
	}
	return w.Buffer.Write(b)
}

func TestDemo_InterruptedSaysWhereTheDatabaseIs(t *testing.T) {
	t.Parallel()
	for _, moment := range []string{"publishing", "the connection was cut", "reading the stream again"} {
		t.Run(moment, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			var stdout bytes.Buffer
			stderr := cancelOn{text: moment, cancel: cancel}
			dir := t.TempDir()
			code := run(ctx, []string{"demo", "--messages", "200", "--dir", dir}, nil, &stdout, &stderr)
			require.Equal(t, exitFailure, code)
			require.Empty(t, stdout.String())
			require.Contains(t, stderr.String(),
				"edge-consumer: interrupted before the proof; the database so far is "+filepath.Join(dir, "demo.db"))

			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			for _, entry := range left {
				require.False(t, entry.IsDir() && entry.Name() != demoGateway, "the broker's files are still there: %s", entry.Name())
			}
		})
	}
}

func TestDemo_PublishesWhatItPlanned(t *testing.T) {
	t.Parallel()
	good, poison, err := templates()
	require.NoError(t, err)
	for _, n := range []int{1, 2, 7, 8, 9, 20, 21, 28, 1000} {
		ids := map[string]int{}
		total := 0
		for m := range demoMessages(good, poison, n) {
			ids[m.Header.Get("ce-id")]++
			total++
		}
		require.Equal(t, planned(n), total, "n = %d", n)
		require.Len(t, ids, n+1, "n = %d", n)
	}
}

// TestProof breaks what the proof is about, one thing at a time. A proof that
// cannot fail proves nothing.
func TestProof(t *testing.T) {
	t.Parallel()
	const hello = `'Codertocat/Hello-World'`
	for _, tt := range []struct {
		name         string
		sql          string
		lost, double int64
		holds        bool
	}{
		{name: "untouched", holds: true},
		{name: "row deleted", sql: `DELETE FROM events WHERE rowid = 7`, lost: 1},
		{name: "two rows deleted", sql: `DELETE FROM events WHERE rowid IN (7, 8)`, lost: 2},
		{name: "row doubled", sql: `INSERT INTO events SELECT * FROM events WHERE rowid = 7`, double: 1},
		{name: "count one too high", sql: `UPDATE repositories SET events = events + 1 WHERE name = ` + hello, double: 1},
		{name: "count one too low", sql: `UPDATE repositories SET events = events - 1 WHERE name = ` + hello, lost: 1},
		{name: "repository deleted", sql: `DELETE FROM repositories WHERE name = 'Octocoders/Hello-World'`, lost: 2},
		{name: "open issue too many", sql: `UPDATE repositories SET issues_open = issues_open + 1 WHERE name = ` + hello},
		{name: "row that nobody sent", sql: `INSERT INTO events (source, id, type, shape) VALUES ('x', 'y', 'z', 'object')`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ib, ev := applied(t)
			if tt.sql != "" {
				require.NoError(t, ib.Update(t.Context(), func(ctx context.Context, tx *inbox.Tx) error {
					_, err := tx.ExecContext(ctx, tt.sql)
					return err
				}))
			}
			p, err := prove(t.Context(), ib, ev)
			require.NoError(t, err)
			require.Equal(t, tt.holds, p.holds(), p.problems)
			require.Equal(t, tt.lost, p.Lost, "lost: %q", p.problems)
			require.Equal(t, tt.double, p.DoubleApplied, "double applied: %q", p.problems)
		})
	}
}

func TestProof_MessageThatNeverCame(t *testing.T) {
	t.Parallel()
	ib, ev := applied(t)
	ev.add(identity{"https://github.com", "one more"}, "com.github.push", []byte(`{}`))
	p, err := prove(t.Context(), ib, ev)
	require.NoError(t, err)
	require.False(t, p.holds())
	require.EqualValues(t, 1, p.Lost)
}

// applied is an inbox that has taken the messages of a small demo, and the
// evidence of them.
func applied(t *testing.T) (*inbox.Inbox, *evidence) {
	t.Helper()
	ctx := t.Context()
	ib, err := inbox.Open(ctx, filepath.Join(t.TempDir(), "proof.db"), &inbox.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ib.Close()) })
	require.NoError(t, ib.Update(ctx, createTables))
	handler, err := writeGateway(t.TempDir())
	require.NoError(t, err)
	consumer, err := ib.Consumer(demoConsumer, handler.Handle, nil)
	require.NoError(t, err)
	good, poison, err := templates()
	require.NoError(t, err)
	ev := newEvidence()
	for m := range demoMessages(good, poison, len(good)) {
		in := inbox.Message{
			Source: m.Header.Get("ce-source"), ID: m.Header.Get("ce-id"), Type: m.Header.Get("ce-type"),
			Headers: inbox.Header(m.Header), Payload: m.Data,
		}
		ev.add(identity{in.Source, in.ID}, in.Type, in.Payload)
		_, err := consumer.Process(ctx, in)
		require.NoError(t, err)
	}
	return ib, ev
}
