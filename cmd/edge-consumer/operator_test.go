package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"edge.example/inbox"
	"github.com/stretchr/testify/require"
)

// noticed bounds how long the owner may take to see what a command did: it
// looks once a second.
const noticed = 10 * time.Second

// A daemon owns an inbox in this process, with Run going.
type daemon struct {
	*inbox.Inbox
	orders *inbox.Consumer
	broken atomic.Bool // its handler calls every message hopeless
	runs   atomic.Int64
}

func startDaemon(t *testing.T, opts *inbox.ConsumerOptions) *daemon {
	t.Helper()
	ib, err := inbox.Open(t.Context(), filepath.Join(t.TempDir(), "edge.db"), &inbox.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	d := &daemon{Inbox: ib}
	d.orders, err = ib.Consumer("orders", func(context.Context, *inbox.Tx, *inbox.Message) error {
		d.runs.Add(1)
		if d.broken.Load() {
			return inbox.Permanent(errors.New("no such table: stock"))
		}
		return nil
	}, opts)
	require.NoError(t, err)
	stopped := make(chan error, 1)
	go func() { stopped <- ib.Run(context.Background()) }()
	t.Cleanup(func() {
		require.NoError(t, ib.Close())
		require.NoError(t, <-stopped)
	})
	return d
}

func (d *daemon) process(t *testing.T, source, id string) inbox.Outcome {
	t.Helper()
	outcome, err := d.orders.Process(t.Context(), inbox.Message{Source: source, ID: id, Payload: []byte("{}")})
	require.True(t, err == nil || outcome == inbox.Dead, "%v", err)
	return outcome
}

func (d *daemon) stats(t *testing.T) inbox.ConsumerStats {
	t.Helper()
	s, err := d.Stats(t.Context())
	require.NoError(t, err)
	return s.Consumers["orders"]
}

// operate runs a command on the file of ib, as another process would.
func operate(t *testing.T, ib *inbox.Inbox, wantCode int, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(t.Context(), append([]string{args[0], "--db", ib.Path()}, args[1:]...), strings.NewReader(""), &out, &errs)
	require.Equal(t, wantCode, code, "%v: %s%s", args, out.String(), errs.String())
	return out.String(), errs.String()
}

func TestOperator_TheOwnerNotices(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, nil)
	d.broken.Store(true)
	require.Equal(t, inbox.Dead, d.process(t, "shop", "a"))
	require.Equal(t, inbox.Dead, d.process(t, "shop", "b"))
	d.broken.Store(false)

	operate(t, d.Inbox, exitOK, "retry", "a")
	require.Eventually(t, func() bool { return d.stats(t).Completed == 1 }, noticed, 10*time.Millisecond)
	require.EqualValues(t, 1, d.stats(t).Dead, "b was not named")

	operate(t, d.Inbox, exitOK, "discard", "b", "--yes")
	require.EqualValues(t, 1, d.stats(t).Discarded)

	operate(t, d.Inbox, exitOK, "pause", "orders")
	require.Eventually(t, d.orders.Paused, noticed, 10*time.Millisecond)
	_, stderr := operate(t, d.Inbox, exitOK, "replay", "a", "--yes")
	require.Contains(t, stderr, "orders is paused")
	outcome, err := d.orders.Receive(t.Context(), inbox.Message{Source: "shop", ID: "c", Payload: []byte("{}")})
	require.NoError(t, err)
	require.Equal(t, inbox.Pending, outcome)
	require.EqualValues(t, 2, d.stats(t).Pending)
	require.EqualValues(t, 3, d.runs.Load(), "a and b failed, a was retried; nothing runs in a pause")

	operate(t, d.Inbox, exitOK, "resume", "orders")
	require.Eventually(t, func() bool { return d.stats(t).Completed == 2 }, noticed, 10*time.Millisecond)
	require.EqualValues(t, 5, d.runs.Load())

	stdout, _ := operate(t, d.Inbox, exitOK, "show", "a")
	require.Contains(t, stdout, "no such table: stock", "the failed attempt is kept")
}

func TestOperator_ChangesInBatches(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, nil)
	d.broken.Store(true)
	const n = 2*changeBatch + 10
	for i := range n {
		outcome, err := d.orders.Process(t.Context(), inbox.Message{
			Source: fmt.Sprintf("shop-%d", i%2), ID: fmt.Sprint(i / 2), Type: []string{"sale", "test"}[i%2], Payload: []byte("{}"),
		})
		require.True(t, err == nil || outcome == inbox.Dead, "%v", err)
	}
	require.EqualValues(t, n, d.stats(t).Dead)
	d.broken.Store(false)

	// The same ids came from two sources: a condition, or --source, tells them apart.
	stdout, _ := operate(t, d.Inbox, exitOK, "discard", "--type", "test", "--yes", "--json")
	require.Contains(t, stdout, fmt.Sprintf(`"changed": %d,`, n/2))
	require.EqualValues(t, n/2, d.stats(t).Discarded)
	operate(t, d.Inbox, exitOK, "retry", "--source", "shop-0", "7")
	_, stderr := operate(t, d.Inbox, exitNoMatch, "retry", "--source", "shop-1", "8")
	require.Contains(t, stderr, "message 8 is discarded, not dead")

	// More ids than one transaction takes.
	var ids []string
	for i := range n / 2 {
		if i != 7 {
			ids = append(ids, fmt.Sprint(i))
		}
	}
	stdout, _ = operate(t, d.Inbox, exitOK, append([]string{"retry", "--json"}, ids...)...)
	require.Contains(t, stdout, fmt.Sprintf(`"changed": %d,`, n/2-1))
	require.Eventually(t, func() bool { return d.stats(t).Completed == n/2 }, noticed, 10*time.Millisecond)
	require.Zero(t, d.stats(t).Dead)
	require.Zero(t, d.stats(t).Pending)
}

func TestOperator_PayloadNotKept(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, &inbox.ConsumerOptions{DropPayload: true})
	require.Equal(t, inbox.Applied, d.process(t, "shop", "a"))
	stdout, stderr := operate(t, d.Inbox, exitNoMatch, "replay", "--all", "--yes", "--json")
	require.Contains(t, stdout, `"without_payload": 1,`)
	require.Contains(t, stderr, "cannot run again, the payload was not kept")
	stdout, _ = operate(t, d.Inbox, exitOK, "show", "a", "--payload", "--json")
	require.Contains(t, stdout, `"payload_bytes":null`)
	require.Contains(t, stdout, `"payload":null`)
}

// TestOperator_JSONKeys holds every command to the keys that docs/json.md has.
func TestOperator_JSONKeys(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, nil)
	d.broken.Store(true)
	d.process(t, "shop", "a")
	const messageKeys = "attempts consumer duplicates key last_duplicate_at last_error message_id next_attempt_at " +
		"payload_bytes payload_hash processed_at received_at source status stream stream_seq subject type"
	const changeKeys = "action changed chosen consumer dry_run first not_chosen rehearsed without_payload"
	for _, tt := range []struct {
		args []string
		keys string
	}{
		{[]string{"status"}, "broker consumers database database_bytes disk_free_bytes wal_bytes"},
		{[]string{"list"}, messageKeys},
		{[]string{"show", "a"}, messageKeys + " conflicts failed_attempts payload payload_encoding"},
		{[]string{"retry", "a", "--dry-run"}, changeKeys},
		{[]string{"discard", "a", "--dry-run"}, changeKeys},
		{[]string{"audit"}, "database holds streams"},
		{[]string{"pause", "orders"}, "changed consumer paused"},
		{[]string{"resume", "orders"}, "changed consumer paused"},
	} {
		stdout, _ := operate(t, d.Inbox, exitOK, append(tt.args, "--json")...)
		var got map[string]any
		require.NoError(t, json.Unmarshal([]byte(stdout), &got), tt.args)
		want := strings.Fields(tt.keys)
		slices.Sort(want)
		require.Equal(t, want, slices.Sorted(maps.Keys(got)), tt.args)
		documented(t, got)
	}
}

// documented holds that docs/json.md has every key of an object and of those in it.
func documented(t *testing.T, value any) {
	t.Helper()
	doc, err := os.ReadFile("../../docs/json.md")
	require.NoError(t, err)
	switch v := value.(type) {
	case map[string]any:
		for key, value := range v {
			require.Regexp(t, "[`.]"+key+"`", string(doc))
			documented(t, value)
		}
	case []any:
		for _, value := range v {
			documented(t, value)
		}
	}
}
