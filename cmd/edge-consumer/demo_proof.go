package main

import (
	"context"
	"fmt"

	"edge.example/inbox"
	"github.com/nats-io/nats.go/jetstream"
)

// A proof is what came of comparing a stream with the business tables.
type proof struct {
	Published     int    `json:"published"`      // messages in the stream
	Distinct      int    `json:"distinct"`       // identities in the stream
	Applied       int    `json:"applied"`        // messages the inbox has as completed
	Duplicates    int64  `json:"duplicates"`     // deliveries of a message known already
	Dead          int    `json:"dead"`           // messages given up
	Conflicts     int    `json:"conflicts"`      // contents refused: their identity had another
	BusinessRows  int    `json:"business_rows"`  // rows in the business table events
	Lost          int64  `json:"lost"`           // effects that should be there and are not
	DoubleApplied int64  `json:"double_applied"` // effects that are there more than once
	Database      string `json:"database"`

	repeats  int      // messages published twice
	bytes    uint64   // of all payloads published
	problems []string // why it does not hold
}

func (p *proof) holds() bool { return len(p.problems) == 0 }

// problemf notes why the proof does not hold; the first few reasons will do.
func (p *proof) problemf(format string, args ...any) {
	if len(p.problems) < 20 {
		p.problems = append(p.problems, fmt.Sprintf(format, args...))
	}
}

// expect is for two numbers that must be the same.
func (p *proof) expect(what string, n int64, other string, m int64) {
	if n != m {
		p.problemf("%s: %s; %s: %s", what, comma(n), other, comma(m))
	}
}

// proveDemo opens the file beside nobody, as anyone could, and holds it
// against the stream.
func proveDemo(ctx context.Context, js jetstream.JetStream, db string) (*proof, error) {
	ev, err := readStream(ctx, js, demoStream)
	if err != nil {
		return nil, err
	}
	ib, err := inbox.Open(ctx, db, &inbox.Options{Guest: true})
	if err != nil {
		return nil, err
	}
	defer ib.Close()
	p, err := prove(ctx, ib, ev)
	if err != nil {
		return nil, fmt.Errorf("proving: %w", err)
	}
	audits, err := ib.Audit(ctx)
	if err != nil {
		return nil, err
	}
	var sequences int64
	for i := range audits {
		a := &audits[i]
		if err := a.Compare(ctx, js); err != nil {
			return nil, err
		}
		sequences += a.Sequences()
		for _, fault := range faults(a) {
			p.problemf("%s", fault)
		}
	}
	p.expect("sequences accounted for", sequences, "messages in the stream", int64(ev.messages))
	return p, nil
}

// prove compares the business tables, and what the inbox says of the rest,
// with the evidence, and uses that up.
func prove(ctx context.Context, ib *inbox.Inbox, ev *evidence) (*proof, error) {
	p := &proof{
		Published: ev.messages, Distinct: len(ev.messageOf), Database: ib.Path(),
		repeats: ev.repeats, bytes: ev.bytes,
	}
	st, err := ib.Stats(ctx)
	if err != nil {
		return nil, err
	}
	p.Duplicates = st.Consumers[demoConsumer].Duplicates
	err = ib.View(ctx, func(ctx context.Context, rx *inbox.Rx) error {
		for _, read := range []func(context.Context, *inbox.Rx, *evidence) error{
			p.readEvents, p.readInbox, p.readConflicts, p.readRepositories,
		} {
			if err := read(ctx, rx, ev); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	p.judge(ev)
	return p, nil
}

// judge draws the conclusions. A message that was lost, or took effect twice,
// shows in its row and in the sum of its repository: it counts once.
func (p *proof) judge(ev *evidence) {
	var lost, double int64
	for id, s := range ev.messageOf {
		switch {
		case s.rows == 0 && !s.dead:
			if lost++; lost == 1 {
				p.problemf("message %s has no row in the business table and is not dead", id.id)
			}
		case s.rows > 0 && s.dead:
			p.problemf("message %s is dead and has a row in the business table", id.id)
		case s.dead && s.good:
			p.problemf("message %s is a good event and dead", id.id)
		case s.rows > 1:
			if double += int64(s.rows - 1); double == int64(s.rows-1) {
				p.problemf("message %s has %d rows in the business table", id.id, s.rows)
			}
		}
	}
	p.Lost, p.DoubleApplied = max(p.Lost, lost), max(p.DoubleApplied, double)

	p.expect("business rows", int64(p.BusinessRows), "good events in the stream", int64(ev.good))
	p.expect("messages applied", int64(p.Applied), "business rows", int64(p.BusinessRows))
	p.expect("messages applied and dead", int64(p.Applied+p.Dead), "distinct in the stream", int64(p.Distinct))
	p.expect("conflicts", int64(p.Conflicts), "in the stream", int64(ev.conflicts))
	p.expect("published", int64(p.Published), "distinct, repeats and conflicts", int64(p.Distinct+p.repeats+p.Conflicts))
	if p.Duplicates < int64(p.repeats) {
		p.problemf("%s duplicates dropped, but %s messages were published twice", comma(p.Duplicates), comma(p.repeats))
	}
}
