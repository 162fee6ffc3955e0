package main

import (
	"context"
	"encoding/base64"
	"time"

	"edge.example/inbox"
	"github.com/spf13/cobra"
)

const showHelp = `Print the whole life of a message: when it came and how it stands, each failed
attempt with its error (the last 50 are kept), its duplicates, and the versions
with another content that were refused.

The same id may be there for several consumers and from several sources: all
are printed, unless --consumer and --source say which. With --payload the
payload is printed too, as text if all of it can be seen, else as a hex dump.
With --json it is one object a line.

The file may be in use. The exit status is 1 if there is no such message.`

func newShow() *cobra.Command {
	var asJSON, payload bool
	var consumer, source string
	var db *database
	cmd := &cobra.Command{
		Use:   "show --db FILE ID",
		Short: "Show the whole life of a message",
		Long:  showHelp,
		Example: `  edge-consumer show --db orders.db 01K2Z7Q8
  edge-consumer show --db orders.db 01K2Z7Q8 --consumer orders --payload
  edge-consumer show --db orders.db 01K2Z7Q8 --json | jq '.failed_attempts[].error'`,
		Args: oneArg("the id of a message"),
		RunE: action(func(ctx context.Context, args []string, s stdio) error {
			ib, err := db.open(ctx)
			if err != nil {
				return err
			}
			defer ib.Close()
			if consumer != "" {
				stats, err := ib.Stats(ctx)
				if err != nil {
					return err
				}
				if err := knownConsumer(&stats, consumer); err != nil {
					return err
				}
			}
			f := &filter{consumer: consumer, source: source, ids: args}
			p := printer{w: s.out}
			e := newJSONEncoder(s.out)
			n := 0
			err = ib.View(ctx, func(ctx context.Context, rx *inbox.Rx) error {
				return eachMessage(ctx, rx, f, 0, func(m *message) error {
					l, err := readLife(ctx, rx, m, payload)
					if err != nil {
						return err
					}
					if n++; asJSON {
						return e.Encode(l)
					}
					if n > 1 {
						p.printf("\n")
					}
					l.print(&p, payload)
					return p.err
				})
			})
			if err == nil && n == 0 {
				err = f.unknown()
			}
			return err
		}),
	}
	db = databaseFlag(cmd)
	flags := cmd.Flags()
	flags.StringVar(&consumer, "consumer", "", "only the message of this consumer")
	flags.StringVar(&source, "source", "", "only the message of this source, as it is shown")
	flags.BoolVar(&payload, "payload", false, "print the payload too")
	flags.BoolVar(&asJSON, "json", false, "print one JSON object a line")
	return cmd
}

// unknown is the error when nobody has the id.
func (f *filter) unknown() error {
	where := ""
	if f.source != "" {
		where = " of source " + f.source
	}
	if f.consumer != "" {
		where += " for consumer " + f.consumer
	}
	return exitf(exitNoMatch, "there is no message %s%s; list shows which there are", f.ids[0], where)
}

// A messageLife is the JSON of the show command: the message, and what happened to it.
type messageLife struct {
	message
	Payload         *string         `json:"payload"`          // null without --payload, and when it was not kept
	PayloadEncoding *string         `json:"payload_encoding"` // text or base64; null with payload
	FailedAttempts  []failedAttempt `json:"failed_attempts"`
	Conflicts       []refused       `json:"conflicts"`

	payload []byte
}

type failedAttempt struct {
	Attempt int64  `json:"attempt"`
	At      string `json:"at"`
	Error   string `json:"error"`
}

// refused is a version of the message with another content.
type refused struct {
	Hash      string `json:"refused_hash"`
	Bytes     int64  `json:"refused_bytes"`
	FirstSeen string `json:"first_seen"`
	LastSeen  string `json:"last_seen"`
	Count     int64  `json:"count"`
}

func readLife(ctx context.Context, rx *inbox.Rx, m *message, payload bool) (*messageLife, error) {
	l := &messageLife{message: *m, FailedAttempts: []failedAttempt{}, Conflicts: []refused{}}
	this := []any{m.Consumer, m.Source, m.MessageID}
	if payload && m.PayloadBytes != nil {
		err := rx.QueryRowContext(ctx, `
			SELECT payload FROM inbox WHERE consumer = ? AND source = ? AND message_id = ?`, this...).Scan(&l.payload)
		if err != nil {
			return nil, err
		}
		text, encoding := string(l.payload), "text"
		if !plainText(l.payload) {
			text, encoding = base64.StdEncoding.EncodeToString(l.payload), "base64"
		}
		l.Payload, l.PayloadEncoding = &text, &encoding
	}
	attempts, err := rx.QueryContext(ctx, `
		SELECT attempt, at, error FROM inbox_attempts
		 WHERE consumer = ? AND source = ? AND message_id = ?
		 ORDER BY at, attempt`, this...)
	if err != nil {
		return nil, err
	}
	defer attempts.Close()
	for attempts.Next() {
		var a failedAttempt
		if err := attempts.Scan(&a.Attempt, &a.At, &a.Error); err != nil {
			return nil, err
		}
		l.FailedAttempts = append(l.FailedAttempts, a)
	}
	if err := attempts.Err(); err != nil {
		return nil, err
	}
	conflicts, err := rx.QueryContext(ctx, `
		SELECT refused_hash, length(refused_payload), first_seen, last_seen, count FROM inbox_conflicts
		 WHERE consumer = ? AND source = ? AND message_id = ?
		 ORDER BY first_seen, refused_hash`, this...)
	if err != nil {
		return nil, err
	}
	defer conflicts.Close()
	for conflicts.Next() {
		var c refused
		if err := conflicts.Scan(&c.Hash, &c.Bytes, &c.FirstSeen, &c.LastSeen, &c.Count); err != nil {
			return nil, err
		}
		l.Conflicts = append(l.Conflicts, c)
	}
	return l, conflicts.Err()
}

// due says when a pending message runs.
func (m *message) due(now time.Time) string {
	switch {
	case m.Status != "pending":
		return ""
	case m.NextAttemptAt == nil:
		return "waits for an earlier message with its key"
	case *m.NextAttemptAt <= viewTime(now):
		return "due since " + *m.NextAttemptAt
	}
	return "due at " + *m.NextAttemptAt
}
