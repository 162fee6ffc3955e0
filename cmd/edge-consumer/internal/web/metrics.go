package web

import (
	"context"
	"runtime"
	"time"

	"edge.example/inbox"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// namespace begins the name of every metric of ours. deploy/metrics.md lists
// them.
const namespace = "edge_consumer_"

// Labels have few values: consumers that the file knows, statuses, kinds of
// alerts. Nothing that a message brings becomes a label.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(namespace+name, help, labels, nil)
}

var (
	descMessages = desc("messages", "Messages in the file, by status.", "consumer", "status")
	descOldest   = desc("oldest_pending_seconds", "How long the longest waiting message has waited; 0 when none waits.", "consumer")
	descPaused   = desc("paused", "1 when an operator paused the consumer.", "consumer")

	descApplied    = desc("applied_total", "Attempts that took effect, since the file was made.", "consumer")
	descDuplicates = desc("duplicates_total", "Deliveries whose identity was known, since the file was made.", "consumer")
	descConflicts  = desc("conflicts_total", "Deliveries whose identity was known with another content, since the file was made.", "consumer")
	descRetries    = desc("retries_total", "Attempts after a message's first, since the file was made.", "consumer")
	descFailures   = desc("failures_total", "Attempts that failed, since the file was made.", "consumer")

	descQueue  = desc("queue_length", "Messages that wait for the writer.")
	descCommit = desc("commit_seconds", "How long transactions took, from BEGIN to the end of COMMIT.")
	descGroup  = desc("group_size", "Messages, and other jobs, in a transaction.")

	descDatabase = desc("database_bytes", "Size of the database file.")
	descWAL      = desc("wal_bytes", "Size of the write-ahead log.")
	descFree     = desc("disk_free_bytes", "Space left on the disk of the database.")
	descUp       = desc("database_up", "1 when the database can be read and written. When it cannot be read, the metrics from the file are left out.")
	descBroker   = desc("broker_connected", "1 while the broker is connected and can be used.")

	descBuild = desc("build_info", "Always 1; the labels say what runs.", "version", "goversion")
	descStart = desc("start_time_seconds", "When the process started, in seconds since 1970.")

	descs = []*prometheus.Desc{
		descMessages, descOldest, descPaused,
		descApplied, descDuplicates, descConflicts, descRetries, descFailures,
		descQueue, descCommit, descGroup,
		descDatabase, descWAL, descFree, descUp, descBroker,
		descBuild, descStart,
	}
)

// started is near enough to the start of the process.
var started = time.Now()

// newRegistry has all that /metrics shows.
func newRegistry(src *Source) (*prometheus.Registry, error) {
	reg := prometheus.NewRegistry()
	all := []prometheus.Collector{
		&collector{src: src, now: time.Now},
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	}
	if src.Alerts != nil {
		all = append(all, src.Alerts.total)
	}
	for _, c := range all {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return reg, nil
}

// A collector reads the source when it is scraped: one snapshot of the file a
// scrape, and no state of its own.
type collector struct {
	src *Source
	now func() time.Time
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descs {
		ch <- d
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeLimit)
	defer cancel()
	s := sink{ch}
	s.gauge(descBuild, 1, c.src.Version, runtime.Version())
	s.gauge(descStart, float64(started.UnixMilli())/1000)
	b := c.src.Broker()
	s.gauge(descBroker, bit(b.Connected && b.Err == nil))
	if free, err := c.src.DiskFree(); err == nil {
		s.gauge(descFree, float64(free))
	}
	stats, err := c.src.Stats(ctx)
	s.gauge(descUp, bit(err == nil && c.src.Storage() == nil))
	if err == nil {
		s.stats(&stats, c.now())
	}
}

// A sink sends metrics. One that cannot be made, with a consumer's name that is
// not UTF-8, becomes an error of the scrape and costs no other metric.
type sink struct{ ch chan<- prometheus.Metric }

func (s sink) stats(stats *inbox.Stats, now time.Time) {
	for name, c := range stats.Consumers {
		for status, n := range map[string]int64{
			"pending": c.Pending, "processing": c.Processing, "completed": c.Completed, "dead": c.Dead, "discarded": c.Discarded,
		} {
			s.gauge(descMessages, float64(n), name, status)
		}
		var oldest float64
		if !c.OldestPending.IsZero() {
			oldest = max(0, now.Sub(c.OldestPending).Seconds()) // the clock may have been set back
		}
		s.gauge(descOldest, oldest, name)
		s.gauge(descPaused, bit(c.Paused), name)
		s.counter(descApplied, c.Applied, name)
		s.counter(descDuplicates, c.Duplicates, name)
		s.counter(descConflicts, c.Conflicts, name)
		s.counter(descRetries, c.Retries, name)
		s.counter(descFailures, c.Failures, name)
	}
	s.gauge(descQueue, float64(stats.QueueLength))
	s.histogram(descCommit, &stats.Commits)
	s.histogram(descGroup, &stats.GroupSizes)
	s.gauge(descDatabase, float64(stats.DatabaseBytes))
	s.gauge(descWAL, float64(stats.WALBytes))
}

func (s sink) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s.send(d)(prometheus.NewConstMetric(d, prometheus.GaugeValue, v, labels...))
}

func (s sink) counter(d *prometheus.Desc, v int64, labels ...string) {
	s.send(d)(prometheus.NewConstMetric(d, prometheus.CounterValue, float64(v), labels...))
}

// histogram adds the counts up: Prometheus's buckets are cumulative.
func (s sink) histogram(d *prometheus.Desc, h *inbox.Histogram) {
	buckets := make(map[float64]uint64, len(h.Bounds))
	var sum uint64
	for i, bound := range h.Bounds {
		sum += h.Counts[i]
		buckets[bound] = sum
	}
	s.send(d)(prometheus.NewConstHistogram(d, h.Count, h.Sum, buckets))
}

func (s sink) send(d *prometheus.Desc) func(prometheus.Metric, error) {
	return func(m prometheus.Metric, err error) {
		if err != nil {
			m = prometheus.NewInvalidMetric(d, err)
		}
		s.ch <- m
	}
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
