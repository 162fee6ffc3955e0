package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"edge.example/inbox"
)

// An auditReport is the JSON of the audit command.
type auditReport struct {
	Database string        `json:"database"`
	Holds    bool          `json:"holds"` // nothing missing, nothing unexplained, every comparison made
	Streams  []auditStream `json:"streams"`

	faults []string
	failed error // the first comparison that could not be made
}

// An auditStream is the account of one consumer for one life of one stream.
type auditStream struct {
	Consumer string    `json:"consumer"`
	Stream   string    `json:"stream"`
	Durable  string    `json:"durable"`
	Created  time.Time `json:"created"`
	Epoch    int       `json:"epoch"`
	Current  bool      `json:"current"`

	Accounted   []inbox.Interval `json:"accounted"`
	Sequences   int64            `json:"sequences"`
	Completed   int64            `json:"completed"`
	Pending     int64            `json:"pending"`
	Processing  int64            `json:"processing"`
	Dead        int64            `json:"dead"`
	Discarded   int64            `json:"discarded"`
	Duplicates  int64            `json:"duplicates"`
	Conflicts   int64            `json:"conflicts"`
	Skipped     int64            `json:"skipped"`
	Missing     []inbox.Interval `json:"missing"`
	Unexplained int64            `json:"unexplained"`

	Compared bool             `json:"compared"`  // with the live stream
	Waiting  uint64           `json:"waiting"`   // on the broker, if compared
	OnBroker []inbox.Interval `json:"on_broker"` // not delivered yet, though later ones were
	Error    string           `json:"error"`     // why it could not be compared
}

func (r *auditReport) add(a *inbox.StreamAudit, compared bool, err error) {
	s := auditStream{
		Consumer: a.Consumer, Stream: a.Stream, Durable: a.Durable, Created: a.Created, Epoch: a.Epoch, Current: a.Current,
		Accounted: notNil(a.Accounted), Sequences: a.Sequences(),
		Completed: a.Completed, Pending: a.Pending, Processing: a.Processing, Dead: a.Dead, Discarded: a.Discarded,
		Duplicates: a.Duplicates, Conflicts: a.Conflicts, Skipped: a.Skipped,
		Missing: notNil(a.Missing), Unexplained: a.Unexplained,
		Compared: compared && err == nil, Waiting: a.Waiting, OnBroker: notNil(a.OnBroker),
	}
	if err != nil {
		s.Error = err.Error()
		if r.failed == nil {
			r.failed = err
		}
	}
	r.Streams = append(r.Streams, s)
	r.faults = append(r.faults, faults(a)...)
	r.Holds = len(r.faults) == 0 && r.failed == nil
}

// notNil is for JSON, where nil would be null.
func notNil(ivs []inbox.Interval) []inbox.Interval {
	return append([]inbox.Interval{}, ivs...)
}

// faults says what is wrong with an account.
func faults(a *inbox.StreamAudit) (faults []string) {
	if n := count(a.Missing); n > 0 {
		faults = append(faults, fmt.Sprintf("%s missing of stream %s for consumer %s (%s)",
			plural(n, "sequence is", "sequences are"), a.Stream, a.Consumer, intervals(a.Missing)))
	}
	if a.Unexplained != 0 {
		faults = append(faults, fmt.Sprintf("%s unexplained of stream %s for consumer %s",
			plural(a.Unexplained, "sequence is", "sequences are"), a.Stream, a.Consumer))
	}
	return faults
}

// verdict is the command's error: exit status 1 for a fault, 3 when the
// broker could not tell.
func (r *auditReport) verdict() error {
	switch {
	case len(r.faults) > 0:
		return exitf(exitNotHeld, "the audit does not hold: %s", strings.Join(r.faults, "; "))
	case r.failed != nil:
		return fmt.Errorf("not everything could be compared: %w", r.failed)
	}
	return nil
}

// print writes the report for people.
func (r *auditReport) print(w io.Writer) error {
	p := printer{w: w}
	for i := range r.Streams {
		r.Streams[i].print(&p)
	}
	switch {
	case len(r.Streams) == 0:
		p.printf("No consumer of this inbox has taken anything from a stream.\n")
	case r.Holds:
		p.printf("Nothing missing, nothing unexplained.\n")
	}
	return p.err
}

func (s *auditStream) print(p *printer) {
	life := "current"
	if !s.Current {
		life = "an earlier life"
	}
	if s.Epoch > 0 {
		life += fmt.Sprintf(", after losing its tail %d times", s.Epoch)
	}
	p.printf("consumer %s, stream %s (%s)\n", s.Consumer, s.Stream, life)
	p.printf("  made         %s, durable consumer %s\n", s.Created.Format(time.RFC3339), s.Durable)
	p.printf("  accounted    %s: %s\n", plural(s.Sequences, "sequence", "sequences"), intervals(s.Accounted))
	for _, part := range []struct {
		name   string
		n      int64
		always bool
	}{
		{"completed", s.Completed, true}, {"pending", s.Pending, false}, {"processing", s.Processing, false},
		{"dead", s.Dead, false}, {"discarded", s.Discarded, false}, {"duplicates", s.Duplicates, false},
		{"conflicts", s.Conflicts, false}, {"skipped", s.Skipped, false}, {"unexplained", s.Unexplained, true},
	} {
		if part.always || part.n != 0 {
			p.printf("  %-11s  %s\n", part.name, comma(part.n))
		}
	}
	p.printf("  missing      %s\n", countAnd(s.Missing))
	switch {
	case s.Error != "":
		p.printf("  broker       not compared: %s\n", s.Error)
	case s.Compared:
		p.printf("  broker       %s waiting; delivered out of turn: %s\n", comma(s.Waiting), countAnd(s.OnBroker))
	}
	p.printf("\n")
}

// countAnd is the number of sequences and which they are.
func countAnd(ivs []inbox.Interval) string {
	if len(ivs) == 0 {
		return "0"
	}
	return comma(count(ivs)) + ": " + intervals(ivs)
}

func count(ivs []inbox.Interval) (n int64) {
	for _, iv := range ivs {
		n += int64(iv.Last - iv.First + 1)
	}
	return n
}

// intervals writes the first and the last of many.
func intervals(ivs []inbox.Interval) string {
	const ends = 3
	if len(ivs) == 0 {
		return "none"
	}
	var parts []string
	for i, iv := range ivs {
		switch {
		case i == ends && len(ivs) > 2*ends+1:
			parts = append(parts, fmt.Sprintf("(%s more)", comma(len(ivs)-2*ends)))
		case i > ends && i < len(ivs)-ends && len(ivs) > 2*ends+1:
		case iv.First == iv.Last:
			parts = append(parts, fmt.Sprint(iv.First))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", iv.First, iv.Last))
		}
	}
	return strings.Join(parts, ", ")
}

// plural is n with the right word.
func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return comma(n) + " " + many
}
