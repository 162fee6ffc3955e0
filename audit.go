package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// An Interval of sequences, both ends included.
type Interval struct {
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
}

// A StreamAudit is the account of one consumer for one life of one stream:
// which sequences this file answers for, and what became of them. The sum
//
//	Completed + Pending + Processing + Dead + Discarded + Duplicates + Conflicts + Skipped
//
// equals the number of sequences accounted for; Unexplained is the difference.
type StreamAudit struct {
	Consumer string
	Stream   string
	Durable  string    // the durable consumer on the broker
	Created  time.Time // of the stream
	Epoch    int       // counts the times it lost its tail, or came back after another life
	Current  bool      // the last life of this stream that the consumer met

	Accounted []Interval
	// Missing are sequences that are not accounted for though later ones are.
	// Without the broker's word (Compare) some may have been nobody's.
	Missing []Interval

	// Rows that came by these sequences, by status.
	Completed, Pending, Processing, Dead, Discarded int64
	// Sequences whose message was known by another sequence, or another way.
	Duplicates, Conflicts int64
	// Sequences that were never the consumer's: filtered out, or removed from
	// the stream before they were delivered.
	Skipped int64

	Unexplained int64

	// Set by Compare.
	Waiting  uint64     // messages that the broker still has to deliver, or has out for delivery
	OnBroker []Interval // missing sequences that were only not delivered yet
}

// Sequences is the number of sequences accounted for.
func (a *StreamAudit) Sequences() (n int64) {
	for _, iv := range a.Accounted {
		n += int64(iv.Last - iv.First + 1)
	}
	return n
}

// Audit reads the accounts of all consumers and streams, in one snapshot. It
// reads every row of the inbox: a second for a few million.
func (ib *Inbox) Audit(ctx context.Context) (audits []StreamAudit, err error) {
	err = ib.View(ctx, func(ctx context.Context, rx *Rx) error {
		audits = nil
		index := map[int64]int{}
		// A row or a range without its account is damage: it gets one of its
		// own, so that it shows.
		account := func(id int64) *StreamAudit {
			if _, ok := index[id]; !ok {
				index[id] = len(audits)
				audits = append(audits, StreamAudit{Consumer: "unknown", Stream: fmt.Sprintf("unknown (%d)", id)})
			}
			return &audits[index[id]]
		}
		rows, err := rx.QueryContext(ctx, `
			SELECT i.id, c.name, n.name, i.durable, i.created, i.epoch, i.skipped, i.duplicates, i.conflicts,
			       i.id = (SELECT l.id FROM inbox_stream l WHERE l.consumer = i.consumer AND l.stream = i.stream ORDER BY l.id DESC LIMIT 1)
			  FROM inbox_stream i
			  JOIN inbox_name c ON c.id = i.consumer
			  JOIN inbox_name n ON n.id = i.stream
			 ORDER BY c.name, n.name, i.id`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var a StreamAudit
			var id, created int64
			if err := rows.Scan(&id, &a.Consumer, &a.Stream, &a.Durable, &created, &a.Epoch, &a.Skipped, &a.Duplicates, &a.Conflicts, &a.Current); err != nil {
				return err
			}
			a.Created = time.Unix(0, created).UTC()
			index[id] = len(audits)
			audits = append(audits, a)
		}
		if err := rows.Err(); err != nil {
			return err
		}
		if rows, err = rx.QueryContext(ctx, `SELECT stream, first_seq, last_seq FROM inbox_range ORDER BY stream, first_seq`); err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var id int64
			var iv Interval
			if err := rows.Scan(&id, &iv.First, &iv.Last); err != nil {
				return err
			}
			a := account(id)
			a.Accounted = append(a.Accounted, iv)
		}
		if err := rows.Err(); err != nil {
			return err
		}
		if rows, err = rx.QueryContext(ctx, `SELECT stream, status, count(*) FROM inbox_message WHERE stream IS NOT NULL GROUP BY stream, status`); err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var id, st, n int64
			if err := rows.Scan(&id, &st, &n); err != nil {
				return err
			}
			a := account(id)
			switch status(st) {
			case statusPending:
				a.Pending = n
			case statusProcessing:
				a.Processing = n
			case statusCompleted:
				a.Completed = n
			case statusDead:
				a.Dead = n
			case statusDiscarded:
				a.Discarded = n
			}
		}
		return rows.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("inbox: audit: %w", err)
	}
	for i := range audits {
		a := &audits[i]
		if s := a.spans(); len(s) > 0 {
			for _, g := range s.gaps(1, s[len(s)-1].last) {
				a.Missing = append(a.Missing, Interval{g.first, g.last})
			}
		}
		a.Unexplained = a.Sequences() - a.Completed - a.Pending - a.Processing - a.Dead - a.Discarded - a.Duplicates - a.Conflicts - a.Skipped
	}
	return audits, nil
}

func (a *StreamAudit) spans() (s spans) {
	for _, iv := range a.Accounted {
		s = append(s, span{iv.First, iv.Last})
	}
	return s
}

// Compare asks the live stream about the account. Of the missing sequences,
// those that the stream does not hold for this consumer (filtered out, or
// removed) are no longer missing, and those that the broker has not seen
// acknowledged will still be delivered: they are OnBroker. What stays in
// Missing was acknowledged and is not in the file. The broker is asked once
// for every one of them. A stream that is not there, or is another life,
// is an error.
func (a *StreamAudit) Compare(ctx context.Context, js jetstream.JetStream) error {
	stream, err := js.Stream(ctx, a.Stream)
	if err != nil {
		return fmt.Errorf("inbox: stream %s: %w", a.Stream, err)
	}
	info := stream.CachedInfo()
	if !info.Created.Equal(a.Created) || !a.Current {
		return fmt.Errorf("inbox: stream %s is not the one of this account any more: it was made anew at %s", a.Stream, info.Created.UTC().Format(time.RFC3339))
	}
	floor, subjects := uint64(0), []string(nil)
	consumer, err := stream.Consumer(ctx, a.Durable)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound): // everything will be delivered again from the first gap
	case err != nil:
		return fmt.Errorf("inbox: durable consumer %s of %s: %w", a.Durable, a.Stream, err)
	default:
		ci := consumer.CachedInfo()
		floor = ci.AckFloor.Stream
		a.Waiting = ci.NumPending + uint64(ci.NumAckPending)
		if subjects = ci.Config.FilterSubjects; ci.Config.FilterSubject != "" {
			subjects = []string{ci.Config.FilterSubject}
		}
	}
	var missing []Interval
	s := a.spans()
	last := floor
	if n := len(s); n > 0 {
		last = max(last, s[n-1].last)
	}
	for _, gap := range s.gaps(1, last) {
		for next := max(gap.first, info.State.FirstSeq); next <= gap.last; next++ {
			seq, err := nextMessage(ctx, stream, next, subjects)
			if err != nil {
				return fmt.Errorf("inbox: looking for sequence %d of %s: %w", next, a.Stream, err)
			}
			if seq == 0 || seq > gap.last {
				break
			}
			if seq > floor {
				a.OnBroker = extend(a.OnBroker, seq)
			} else {
				missing = extend(missing, seq)
			}
			next = seq
		}
	}
	a.Missing = missing
	return nil
}

// extend adds a sequence at the end.
func extend(ivs []Interval, seq uint64) []Interval {
	if n := len(ivs); n > 0 && ivs[n-1].Last+1 == seq {
		ivs[n-1].Last = seq
		return ivs
	}
	return append(ivs, Interval{seq, seq})
}
