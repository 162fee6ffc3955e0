package web

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"edge.example/inbox"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files again")

// deploy is the folder with what operators install.
var deploy = filepath.Join("..", "..", "..", "..", "deploy")

func (l *lab) registry() *prometheus.Registry {
	l.t.Helper()
	reg, err := newRegistry(&l.src)
	require.NoError(l.t, err)
	return reg
}

func TestMetrics_FollowTheConventions(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	problems, err := testutil.GatherAndLint(l.registry())
	require.NoError(t, err)
	assert.Empty(t, problems)
}

func TestMetrics_Values(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	require.NoError(t, l.ib.Pause(t.Context(), "orders"))
	stats, err := l.ib.Stats(t.Context())
	require.NoError(t, err)
	want := fmt.Sprintf(`
# HELP edge_consumer_alerts_total Alerts since the process started, by kind.
# TYPE edge_consumer_alerts_total counter
edge_consumer_alerts_total{kind="broker"} 0
edge_consumer_alerts_total{kind="conflict"} 1
edge_consumer_alerts_total{kind="consumer_new"} 0
edge_consumer_alerts_total{kind="dead"} 1
edge_consumer_alerts_total{kind="missing"} 0
edge_consumer_alerts_total{kind="other"} 0
edge_consumer_alerts_total{kind="restored"} 0
edge_consumer_alerts_total{kind="storage"} 0
edge_consumer_alerts_total{kind="stream_new"} 0
edge_consumer_alerts_total{kind="stream_reissued"} 0
# HELP edge_consumer_applied_total Attempts that took effect, since the file was made.
# TYPE edge_consumer_applied_total counter
edge_consumer_applied_total{consumer="orders"} 1
# HELP edge_consumer_broker_connected 1 while the broker is connected and can be used.
# TYPE edge_consumer_broker_connected gauge
edge_consumer_broker_connected 1
# HELP edge_consumer_build_info Always 1; the labels say what runs.
# TYPE edge_consumer_build_info gauge
edge_consumer_build_info{goversion=%q,version="v1.2.3"} 1
# HELP edge_consumer_conflicts_total Deliveries whose identity was known with another content, since the file was made.
# TYPE edge_consumer_conflicts_total counter
edge_consumer_conflicts_total{consumer="orders"} 1
# HELP edge_consumer_database_bytes Size of the database file.
# TYPE edge_consumer_database_bytes gauge
edge_consumer_database_bytes %d
# HELP edge_consumer_database_up 1 when the database can be read and written. When it cannot be read, the metrics from the file are left out.
# TYPE edge_consumer_database_up gauge
edge_consumer_database_up 1
# HELP edge_consumer_disk_free_bytes Space left on the disk of the database.
# TYPE edge_consumer_disk_free_bytes gauge
edge_consumer_disk_free_bytes 5.36870912e+09
# HELP edge_consumer_duplicates_total Deliveries whose identity was known, since the file was made.
# TYPE edge_consumer_duplicates_total counter
edge_consumer_duplicates_total{consumer="orders"} 1
# HELP edge_consumer_failures_total Attempts that failed, since the file was made.
# TYPE edge_consumer_failures_total counter
edge_consumer_failures_total{consumer="orders"} 2
# HELP edge_consumer_messages Messages in the file, by status.
# TYPE edge_consumer_messages gauge
edge_consumer_messages{consumer="orders",status="completed"} 1
edge_consumer_messages{consumer="orders",status="dead"} 1
edge_consumer_messages{consumer="orders",status="discarded"} 0
edge_consumer_messages{consumer="orders",status="pending"} 1
edge_consumer_messages{consumer="orders",status="processing"} 0
# HELP edge_consumer_paused 1 when an operator paused the consumer.
# TYPE edge_consumer_paused gauge
edge_consumer_paused{consumer="orders"} 1
# HELP edge_consumer_queue_length Messages that wait for the writer.
# TYPE edge_consumer_queue_length gauge
edge_consumer_queue_length 0
# HELP edge_consumer_retries_total Attempts after a message's first, since the file was made.
# TYPE edge_consumer_retries_total counter
edge_consumer_retries_total{consumer="orders"} 0
# HELP edge_consumer_wal_bytes Size of the write-ahead log.
# TYPE edge_consumer_wal_bytes gauge
edge_consumer_wal_bytes %d
`, runtime.Version(), stats.DatabaseBytes, stats.WALBytes)
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+)`).FindAllStringSubmatch(want, -1) {
		names = append(names, m[1])
	}
	assert.NoError(t, testutil.GatherAndCompare(l.registry(), strings.NewReader(want), names...))
}

func TestMetrics_Histograms(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.src.Stats = func(context.Context) (inbox.Stats, error) {
		return inbox.Stats{
			Commits:    inbox.Histogram{Bounds: []float64{.001, .01}, Counts: []uint64{3, 4, 2}, Sum: .5, Count: 9},
			GroupSizes: inbox.Histogram{Bounds: []float64{1, 2}, Counts: []uint64{0, 0, 0}},
		}, nil
	}
	assert.NoError(t, testutil.GatherAndCompare(l.registry(), strings.NewReader(`
# HELP edge_consumer_commit_seconds How long transactions took, from BEGIN to the end of COMMIT.
# TYPE edge_consumer_commit_seconds histogram
edge_consumer_commit_seconds_bucket{le="0.001"} 3
edge_consumer_commit_seconds_bucket{le="0.01"} 7
edge_consumer_commit_seconds_bucket{le="+Inf"} 9
edge_consumer_commit_seconds_sum 0.5
edge_consumer_commit_seconds_count 9
# HELP edge_consumer_group_size Messages, and other jobs, in a transaction.
# TYPE edge_consumer_group_size histogram
edge_consumer_group_size_bucket{le="1"} 0
edge_consumer_group_size_bucket{le="2"} 0
edge_consumer_group_size_bucket{le="+Inf"} 0
edge_consumer_group_size_sum 0
edge_consumer_group_size_count 0
`), "edge_consumer_commit_seconds", "edge_consumer_group_size"))
}

func TestMetrics_OldestPending(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for age, want := range map[time.Duration]float64{90 * time.Second: 90, -time.Hour: 0} {
		l := newLab(t)
		l.src.Stats = func(context.Context) (inbox.Stats, error) {
			return inbox.Stats{Consumers: map[string]inbox.ConsumerStats{
				"orders": {OldestPending: now.Add(-age)}, "idle": {},
			}}, nil
		}
		c := &collector{src: &l.src, now: func() time.Time { return now }}
		assert.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(fmt.Sprintf(`
# HELP edge_consumer_oldest_pending_seconds How long the longest waiting message has waited; 0 when none waits.
# TYPE edge_consumer_oldest_pending_seconds gauge
edge_consumer_oldest_pending_seconds{consumer="idle"} 0
edge_consumer_oldest_pending_seconds{consumer="orders"} %g
`, want)), "edge_consumer_oldest_pending_seconds"))
	}
}

func TestMetrics_OneSnapshotAScrape(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	reg := l.registry()
	for range 3 {
		_, err := reg.Gather()
		require.NoError(t, err)
	}
	assert.Equal(t, 3, read(l, &l.snapshots))
}

func TestMetrics_Scrape(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	c := l.serve(Config{})
	resp, body := ask(t, c, http.MethodGet, "/metrics")
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	assert.Contains(t, resp.Header.Get("Content-Type"), "text/plain")
	assert.Contains(t, body, "\ngo_goroutines ")
	assert.Contains(t, body, "\nedge_consumer_start_time_seconds ")
	for _, secret := range []string{errLost.Error(), "not yet", `"a"`, l.ib.Path()} {
		assert.NotContains(t, body, secret, "nothing that a message brought")
	}
	resp, body = ask(t, c, http.MethodGet, "/metrics", "Accept: application/openmetrics-text; version=1.0.0")
	assert.Contains(t, resp.Header.Get("Content-Type"), "application/openmetrics-text")
	assert.True(t, strings.HasSuffix(body, "# EOF\n"))
}

// What cannot be read is left out, and the rest is still there.
func TestMetrics_WhatCannotBeRead(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	c := l.serve(Config{})
	l.set(func() {
		l.broker = Broker{Connected: true, Err: errors.New("no JetStream")}
		l.storage = errors.New("disk full")
		l.free = errors.ErrUnsupported
	})
	_, body := ask(t, c, http.MethodGet, "/metrics")
	assert.Contains(t, body, "\nedge_consumer_database_up 0\n")
	assert.Contains(t, body, "\nedge_consumer_broker_connected 0\n")
	assert.NotContains(t, body, "disk_free_bytes")
	assert.Contains(t, body, "edge_consumer_messages{", "a full disk can be read")

	require.NoError(t, l.ib.Close())
	l.set(func() { l.storage = nil })
	resp, body := ask(t, c, http.MethodGet, "/metrics")
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	assert.Contains(t, body, "\nedge_consumer_database_up 0\n")
	assert.NotContains(t, body, "edge_consumer_messages")
}

func TestMetrics_ANameThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	_, err := l.ib.Consumer("caf\xe9", func(context.Context, *inbox.Tx, *inbox.Message) error { return nil }, nil)
	require.NoError(t, err)
	resp, body := ask(t, l.serve(Config{}), http.MethodGet, "/metrics")
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	assert.Contains(t, body, `edge_consumer_applied_total{consumer="orders"} 1`)
}

func TestMetrics_StatsHasATimeLimit(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.src.Stats = func(ctx context.Context) (inbox.Stats, error) {
		_, limited := ctx.Deadline()
		assert.True(t, limited)
		return inbox.Stats{}, context.DeadlineExceeded
	}
	assert.Equal(t, 1, testutil.CollectAndCount(&collector{&l.src, time.Now}, "edge_consumer_database_up"))
	assert.Contains(t, l.src.database(t.Context()), "deadline")
}

func TestAlerts_AreAllCounted(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile(filepath.Join(deploy, "..", "stats.go"))
	require.NoError(t, err)
	found := regexp.MustCompile(`Alert\w+ +AlertKind = "(\w+)"`).FindAllSubmatch(source, -1)
	require.NotEmpty(t, found)
	a := NewAlerts()
	for _, m := range found {
		assert.Contains(t, a.kinds, inbox.AlertKind(m[1]), "add it to alertKinds")
	}
	assert.Len(t, a.kinds, len(found)+1)
	a.Count(inbox.Alert{Kind: "from_the_future"})
	a.Count(inbox.Alert{Kind: inbox.AlertDead, MessageID: "a"})
	assert.EqualValues(t, 1, testutil.ToFloat64(a.kinds[alertOther]))
	assert.EqualValues(t, 1, testutil.ToFloat64(a.kinds[inbox.AlertDead]))
}

// deploy/metrics.md is made of what the registry says.
func TestMetrics_AreDocumented(t *testing.T) {
	t.Parallel()
	families, err := newLab(t).registry().Gather()
	require.NoError(t, err)
	var b strings.Builder
	b.WriteString("# Metrics\n\n" +
		"What `/metrics` shows, beside the usual `go_*` and `process_*`. The test of\n" +
		"`cmd/edge-consumer/internal/web` writes this file: `go test ./cmd/edge-consumer/internal/web -update`.\n\n" +
		"| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), namespace) {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.GetName(), strings.ToLower(f.GetType().String()), labels(f), f.GetHelp())
		}
	}
	path := filepath.Join(deploy, "metrics.md")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o644))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, b.String(), strings.ReplaceAll(string(got), "\r\n", "\n"), "go test with -update writes it again")
}

func labels(f *dto.MetricFamily) string {
	var names []string
	for _, l := range f.GetMetric()[0].GetLabel() {
		names = append(names, "`"+l.GetName()+"`")
	}
	return strings.Join(names, ", ")
}
