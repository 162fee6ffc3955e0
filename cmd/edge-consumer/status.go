package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"edge.example/inbox"
	"edge.example/inbox/cmd/edge-consumer/internal/gateway"
	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
)

const statusHelp = `Print how an inbox stands, on one screen: how large the file is; for each
consumer its messages by status, how long the oldest waits, and what happened
so far; for each stream the last sequence that is accounted for.

With a configuration, or with --nats or --context, also how the broker stands:
for each consumer how many messages were not delivered yet (its lag), and how
many were and are not acknowledged. With --db alone the broker is not asked. A
broker that cannot be reached is no failure; it is waited for no longer than a
few seconds. Nor is a configuration with secrets that are not in this shell's
environment: the broker is not asked then.

The totals count from the making of the file, over restarts. The file may be in
use. The exit status is 0 whatever there is to see: use doctor for a verdict on
what is set up, audit for one on the messages, top to go on looking.`

func newStatus() *cobra.Command {
	var asJSON bool
	var db *database
	var broker *brokerFlags
	cmd := &cobra.Command{
		Use:   "status --db FILE",
		Short: "Show how the inbox stands",
		Long:  statusHelp,
		Example: `  edge-consumer status --db orders.db
  edge-consumer status -c edge.yaml
  edge-consumer status --db orders.db --json | jq '.consumers[] | select(.dead > 0)'`,
		Args: noArgs,
		RunE: action(func(ctx context.Context, _ []string, s stdio) error {
			ib, err := db.open(ctx)
			if err != nil {
				return err
			}
			defer ib.Close()
			report, err := readStatus(ctx, ib, time.Now())
			if err != nil {
				return err
			}
			report.Broker, err = statusBroker(ctx, db, broker, ib)
			switch {
			case err != nil:
				return err
			case asJSON:
				return writeJSON(s.out, report)
			}
			return report.print(s.out)
		}),
	}
	db = databaseFlag(cmd)
	broker = newBrokerFlags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// A statusReport is the JSON of the status command.
type statusReport struct {
	Database      string           `json:"database"`
	DatabaseBytes int64            `json:"database_bytes"`
	WALBytes      int64            `json:"wal_bytes"`
	DiskFreeBytes *uint64          `json:"disk_free_bytes"`
	Broker        *brokerStatus    `json:"broker"` // nil: it was not asked
	Consumers     []consumerStatus `json:"consumers"`
}

type consumerStatus struct {
	Consumer string `json:"consumer"`
	Paused   bool   `json:"paused"`

	Pending    int64 `json:"pending"`
	Processing int64 `json:"processing"`
	Completed  int64 `json:"completed"`
	Dead       int64 `json:"dead"`
	Discarded  int64 `json:"discarded"`

	Applied    int64 `json:"applied"`
	Duplicates int64 `json:"duplicates"`
	Conflicts  int64 `json:"conflicts"`
	Retries    int64 `json:"retries"`
	Failures   int64 `json:"failures"`

	OldestPendingAt      *time.Time `json:"oldest_pending_at"`
	OldestPendingSeconds *float64   `json:"oldest_pending_seconds"`

	Streams []streamStatus `json:"streams"`
}

// A streamStatus is about the last life of a stream that the consumer met.
type streamStatus struct {
	Stream  string    `json:"stream"`
	Created time.Time `json:"created"`
	Epoch   int64     `json:"epoch"`
	LastSeq int64     `json:"last_seq"`
}

func readStatus(ctx context.Context, ib *inbox.Inbox, now time.Time) (*statusReport, error) {
	stats, err := ib.Stats(ctx)
	if err != nil {
		return nil, err
	}
	streams, err := readStreams(ctx, ib)
	if err != nil {
		return nil, err
	}
	r := &statusReport{
		Database: ib.Path(), DatabaseBytes: stats.DatabaseBytes, WALBytes: stats.WALBytes,
		Consumers: []consumerStatus{},
	}
	if free, err := gateway.DiskFree(filepath.Dir(ib.Path())); err == nil {
		r.DiskFreeBytes = &free
	}
	for _, name := range consumerNames(&stats) {
		s := stats.Consumers[name]
		c := consumerStatus{
			Consumer: name, Paused: s.Paused,
			Pending: s.Pending, Processing: s.Processing, Completed: s.Completed, Dead: s.Dead, Discarded: s.Discarded,
			Applied: s.Applied, Duplicates: s.Duplicates, Conflicts: s.Conflicts, Retries: s.Retries, Failures: s.Failures,
			Streams: append([]streamStatus{}, streams[name]...),
		}
		if !s.OldestPending.IsZero() {
			// A clock that was set back makes no negative age.
			age := max(now.Sub(s.OldestPending), 0).Seconds()
			c.OldestPendingAt, c.OldestPendingSeconds = &s.OldestPending, &age
		}
		r.Consumers = append(r.Consumers, c)
	}
	return r, nil
}

// Limits of asking the broker, for a command that should end soon.
const (
	statusConnect = 3 * time.Second
	statusAnswer  = 2 * time.Second
)

// statusBroker asks the broker that there is to ask; nil if there is none.
func statusBroker(ctx context.Context, db *database, flags *brokerFlags, ib *inbox.Inbox) (*brokerStatus, error) {
	cfg, err := db.configured()
	switch {
	case err != nil && flags.given():
		return nil, err
	case err != nil: // a secret that only the service has, say
		return unreachable(nil, err), nil
	case cfg == nil && !flags.given():
		return nil, nil
	}
	list, err := durables(ctx, cfg, ib)
	if err != nil {
		return nil, err
	}
	d, err := flags.dialer(cfg, os.LookupEnv)
	switch {
	case err != nil && flags.given():
		return nil, err
	case err != nil: // credentials that cannot be read, say: the rest can be shown
		return unreachable(nil, err), nil
	}
	l, err := connectNow(ctx, d, "edge-consumer status", statusConnect)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return unreachable(d.Servers(), err), nil
	}
	defer l.close()
	return readBroker(ctx, l, d.Servers(), list, statusAnswer), nil
}

// readStreams reads the streams of each consumer.
func readStreams(ctx context.Context, ib *inbox.Inbox) (map[string][]streamStatus, error) {
	streams := map[string][]streamStatus{}
	err := ib.View(ctx, func(ctx context.Context, rx *inbox.Rx) error {
		rows, err := rx.QueryContext(ctx, `
			SELECT consumer, stream, created, epoch, max(last_seq)
			  FROM inbox_streams
			 GROUP BY consumer, stream, created, epoch
			 ORDER BY consumer, stream, created, epoch`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var consumer, created string
			var s streamStatus
			if err := rows.Scan(&consumer, &s.Stream, &created, &s.Epoch, &s.LastSeq); err != nil {
				return err
			}
			if s.Created, err = time.Parse(time.RFC3339Nano, created); err != nil {
				return fmt.Errorf("stream %s of consumer %s has no proper time of creation: %w", s.Stream, consumer, err)
			}
			known := streams[consumer]
			if n := len(known); n > 0 && known[n-1].Stream == s.Stream {
				known[n-1] = s // a later life
				continue
			}
			streams[consumer] = append(known, s)
		}
		return rows.Err()
	})
	return streams, err
}

// print writes the report for people.
func (r *statusReport) print(w io.Writer) error {
	p := printer{w: w}
	p.printf("database  %s\n", visible(r.Database))
	p.printf("size      %s, and %s of write-ahead log\n", humanize.Bytes(uint64(r.DatabaseBytes)), humanize.Bytes(uint64(r.WALBytes)))
	if r.DiskFreeBytes != nil {
		p.printf("disk      %s free\n", humanize.Bytes(*r.DiskFreeBytes))
	}
	if r.Broker != nil {
		p.printf("broker    %s\n", visible(r.Broker.text()))
	}
	if len(r.Consumers) == 0 {
		p.printf("\nThe inbox has no consumer yet.\n")
		r.Broker.print(&p)
		return p.err
	}

	p.printf("\nMessages now:\n\n")
	t := newTable(&p, column{name: "CONSUMER"}, column{name: "PAUSED"}, column{name: "PENDING", right: true},
		column{name: "PROCESSING", right: true}, column{name: "COMPLETED", right: true}, column{name: "DEAD", right: true},
		column{name: "DISCARDED", right: true}, column{name: "OLDEST PENDING", right: true})
	for i := range r.Consumers {
		c := &r.Consumers[i]
		paused, oldest := "no", "-"
		if c.Paused {
			paused = "yes"
		}
		if c.OldestPendingSeconds != nil {
			oldest = age(time.Duration(*c.OldestPendingSeconds * float64(time.Second)))
		}
		t.row(c.Consumer, paused, comma(c.Pending), comma(c.Processing), comma(c.Completed), comma(c.Dead), comma(c.Discarded), oldest)
	}
	t.flush()

	p.printf("\nSo far:\n\n")
	t = newTable(&p, column{name: "CONSUMER"}, column{name: "APPLIED", right: true}, column{name: "DUPLICATES", right: true},
		column{name: "CONFLICTS", right: true}, column{name: "RETRIES", right: true}, column{name: "FAILURES", right: true})
	for i := range r.Consumers {
		c := &r.Consumers[i]
		t.row(c.Consumer, comma(c.Applied), comma(c.Duplicates), comma(c.Conflicts), comma(c.Retries), comma(c.Failures))
	}
	t.flush()

	t = newTable(&p, column{name: "CONSUMER"}, column{name: "STREAM"}, column{name: "LAST SEQUENCE", right: true})
	some := false
	for _, c := range r.Consumers {
		for _, s := range c.Streams {
			t.row(c.Consumer, s.Stream, comma(s.LastSeq))
			some = true
		}
	}
	if some {
		p.printf("\nAccounted for:\n\n")
		t.flush()
	}
	r.Broker.print(&p)
	return p.err
}

// age is a duration for people: its two largest units.
func age(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Minute:
		return d.Truncate(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Truncate(time.Second).String()
	case d < day:
		d = d.Truncate(time.Minute)
		return comma(int64(d/time.Hour)) + "h" + comma(int64(d%time.Hour/time.Minute)) + "m"
	}
	return comma(int64(d/day)) + "d" + comma(int64(d%day/time.Hour)) + "h"
}
