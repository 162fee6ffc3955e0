package inbox

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// Stats is how an inbox stands. Rows and totals are read from the file, in
// one snapshot, and count from its making, over restarts; groups count from Open.
type Stats struct {
	Consumers map[string]ConsumerStats

	QueueLength int       // messages that wait for the writer now
	Commits     Histogram // seconds a transaction took, from BEGIN to the end of COMMIT
	GroupSizes  Histogram // messages (and other jobs) in a transaction

	DatabaseBytes int64 // the size of the file
	WALBytes      int64 // the size of its write-ahead log
}

// ConsumerStats is how one consumer stands.
type ConsumerStats struct {
	Paused bool

	// Rows by status, now.
	Pending, Processing, Completed, Dead, Discarded int64

	// Totals.
	Applied    int64 // attempts that took effect (a replay counts again)
	Duplicates int64 // deliveries whose identity was known
	Conflicts  int64 // deliveries whose identity was known with another content
	Retries    int64 // attempts after the first
	Failures   int64 // attempts that failed

	// OldestPending is since when the longest waiting message waits; zero
	// when none does.
	OldestPending time.Time
}

// A Histogram counts observations up to each bound; one more count is for
// those beyond the last.
type Histogram struct {
	Bounds []float64
	Counts []uint64 // len(Bounds)+1, not cumulative
	Sum    float64
	Count  uint64
}

func (h *Histogram) observe(v float64) {
	i := 0
	for i < len(h.Bounds) && v > h.Bounds[i] {
		i++
	}
	h.Counts[i]++
	h.Sum += v
	h.Count++
}

func newHistogram(bounds ...float64) Histogram {
	return Histogram{Bounds: bounds, Counts: make([]uint64, len(bounds)+1)}
}

func (h *Histogram) clone() Histogram {
	c := *h
	c.Counts = append([]uint64(nil), h.Counts...)
	return c
}

// writerStats is fed by the writer and read by anyone.
type writerStats struct {
	observer *Observer
	mu       sync.Mutex
	commits  Histogram
	sizes    Histogram
}

func newWriterStats(o *Observer) *writerStats {
	return &writerStats{
		observer: o,
		commits:  newHistogram(.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5),
		sizes:    newHistogram(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000),
	}
}

func (s *writerStats) group(size int, took time.Duration) {
	s.mu.Lock()
	s.commits.observe(took.Seconds())
	s.sizes.observe(float64(size))
	s.mu.Unlock()
	if s.observer != nil && s.observer.Committed != nil {
		s.observer.Committed(size, took)
	}
}

// An Observer is told what happens, as it happens, after the commit that made
// it true. Unset functions, and an unset Observer, cost nothing. Functions
// must return quickly and not call the inbox: Committed runs on the writer's
// goroutine, the others where callers are told.
type Observer struct {
	// Delivered is called for every delivery, and every retry, with its outcome.
	Delivered func(consumer string, o Outcome)
	// Failed is called for every failed attempt.
	Failed func(consumer, messageID string, attempt int, err error)
	// Committed is called for every group: how many jobs, and how long from
	// BEGIN to the end of COMMIT.
	Committed func(size int, took time.Duration)
	// Alert is called for what an operator should know.
	Alert func(Alert)
}

// An AlertKind names what an alert is about. The names are stable.
type AlertKind string

const (
	AlertDead           AlertKind = "dead"            // a message was given up
	AlertConflict       AlertKind = "conflict"        // the same identity came with another content
	AlertStorage        AlertKind = "storage"         // the disk or the file failed
	AlertBroker         AlertKind = "broker"          // the broker cannot be used; said once until it can
	AlertStreamNew      AlertKind = "stream_new"      // the stream was deleted and made anew
	AlertStreamReissued AlertKind = "stream_reissued" // the stream lost its tail; its sequences may name other messages
	AlertConsumerNew    AlertKind = "consumer_new"    // the durable consumer was lost and was put back
	AlertMissing        AlertKind = "missing"         // acknowledged sequences that this file does not have are fetched again
	AlertRestored       AlertKind = "restored"        // the broker, or the storage, can be used again
)

// An Alert is something that an operator should know. It is also logged.
type Alert struct {
	Kind      AlertKind
	Consumer  string // "" when it concerns no consumer
	Stream    string
	MessageID string
	Err       error  // the cause, if there is one
	Detail    string // more, for people
}

// alertText is what the log says.
var alertText = map[AlertKind]string{
	AlertDead:           "message given up",
	AlertConflict:       "same identity with another content",
	AlertStorage:        "the file cannot be written",
	AlertBroker:         "the broker cannot be used",
	AlertStreamNew:      "the stream was made anew",
	AlertStreamReissued: "the broker lost the tail of the stream",
	AlertConsumerNew:    "the durable consumer was put back",
	AlertMissing:        "acknowledged messages are missing from the file",
	AlertRestored:       "working again",
}

func (ib *Inbox) alert(a Alert) {
	args := []any{"alert", string(a.Kind)}
	for _, f := range []struct{ k, v string }{{"consumer", a.Consumer}, {"stream", a.Stream}, {"message_id", a.MessageID}, {"detail", a.Detail}} {
		if f.v != "" {
			args = append(args, f.k, f.v)
		}
	}
	if a.Err != nil {
		args = append(args, "error", a.Err)
	}
	level := slog.LevelWarn
	if a.Kind == AlertRestored {
		level = slog.LevelInfo
	}
	ib.say(level, string(a.Kind)+" "+a.Consumer, alertText[a.Kind], args...)
	if o := ib.opts.Observer; o != nil && o.Alert != nil {
		o.Alert(a)
	}
}

// Stats reads how the inbox stands. It blocks for a read of a few rows, not
// for the writer.
func (ib *Inbox) Stats(ctx context.Context) (Stats, error) {
	s := Stats{Consumers: map[string]ConsumerStats{}}
	err := ib.View(ctx, func(ctx context.Context, rx *Rx) error {
		rows, err := rx.QueryContext(ctx, `
			SELECT n.name, c.paused, c.pending, c.processing, c.completed, c.dead, c.discarded,
			       c.applied, c.duplicates, c.conflicts, c.retries, c.failures,
			       (SELECT m.received_at FROM inbox_message m
			         WHERE m.status = 1 AND m.status <= 3 AND m.consumer = c.consumer
			         ORDER BY m.seq LIMIT 1)
			  FROM inbox_consumer c JOIN inbox_name n ON n.id = c.consumer`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var name string
			var c ConsumerStats
			var oldest sql.NullInt64
			if err := rows.Scan(&name, &c.Paused, &c.Pending, &c.Processing, &c.Completed, &c.Dead, &c.Discarded,
				&c.Applied, &c.Duplicates, &c.Conflicts, &c.Retries, &c.Failures, &oldest); err != nil {
				return err
			}
			if oldest.Valid {
				c.OldestPending = unixMilli(oldest.Int64)
			}
			s.Consumers[name] = c
		}
		return rows.Err()
	})
	if err != nil {
		return s, fmt.Errorf("inbox: reading stats: %w", err)
	}
	if ib.w != nil {
		s.QueueLength = ib.w.q.length()
		ib.w.stats.mu.Lock()
		s.Commits, s.GroupSizes = ib.w.stats.commits.clone(), ib.w.stats.sizes.clone()
		ib.w.stats.mu.Unlock()
	}
	// Stat opens no descriptor, so it drops no lock.
	if info, err := os.Stat(ib.path); err == nil {
		s.DatabaseBytes = info.Size()
	}
	if info, err := os.Stat(ib.path + "-wal"); err == nil {
		s.WALBytes = info.Size()
	}
	return s, nil
}
