package inbox

// Binding: before anything is pulled, the broker and the file are brought to
// one opinion. The stream is found, and recognised as the one that was known;
// the durable consumer is found, brought into line or put back where it must
// be; and what the broker holds for acknowledged is compared with what the
// file accounts for.

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// bind finds the stream and the durable consumer and brings them and the file
// to one opinion. It gives up when the connection breaks: the reply to a
// request that was under way then would be waited for in vain.
func (s *subscription) bind(ctx context.Context) error {
	for stale := true; stale; {
		select {
		case <-s.status:
		default:
			stale = false
		}
	}
	if !s.nc.IsConnected() {
		return errors.New("inbox: not connected to the broker") // its URL may hold a password
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	done := make(chan struct{})
	broken := make(chan bool, 1)
	go func() {
		for {
			select {
			case st := <-s.status:
				if st != nats.CONNECTED {
					cancel()
					broken <- true
					return
				}
			case <-done:
				broken <- false
				return
			}
		}
	}()
	err := s.agree(ctx)
	close(done)
	if <-broken {
		return errConnectionLost
	}
	return err
}

// agree is bind while the connection holds.
func (s *subscription) agree(ctx context.Context) error {
	stream, err := s.js.Stream(ctx, s.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) && s.opts.CreateStream != nil {
		cfg := *s.opts.CreateStream
		cfg.Name = s.stream
		stream, err = s.js.CreateStream(ctx, cfg)
	}
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("inbox: stream %s is not there: create it, or set create_stream (SubscribeOptions.CreateStream in Go): %w", s.stream, err)
	}
	if err != nil {
		return fmt.Errorf("inbox: stream %s: %w", s.stream, err)
	}
	s.created = stream.CachedInfo().Created.UnixNano()
	if err := s.agreeOn(ctx, stream); err != nil {
		return err
	}
	// Was it made anew meanwhile? Then the durable consumer is on another
	// stream than the one that this is about.
	info, err := stream.Info(ctx)
	if err != nil {
		return fmt.Errorf("inbox: stream %s: %w", s.stream, err)
	}
	if info.Created.UnixNano() != s.created {
		if err := stream.DeleteConsumer(ctx, s.opts.Durable); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return fmt.Errorf("inbox: durable consumer %s of %s: %w", s.opts.Durable, s.stream, err)
		}
		return errLookAgain
	}
	return nil
}

// agreeOn is agree for the stream as it was looked at.
func (s *subscription) agreeOn(ctx context.Context, stream jetstream.Stream) error {
	info := stream.CachedInfo()
	known, err := s.openAccount()
	if err != nil {
		return err
	}
	start := uint64(0) // where a consumer put back must start; 0: keep it
	lost, at, err := s.lostTail(ctx, stream, info, known)
	switch {
	case err != nil:
		return err
	case lost:
		if known, err = s.reissued(at.seq, at); err != nil {
			return err
		}
		start = known.resume(info.State.FirstSeq)
		s.c.ib.alert(Alert{Kind: AlertStreamReissued, Consumer: s.c.name, Stream: s.stream,
			Detail: fmt.Sprintf("what follows sequence %d is taken for new messages", at.seq)})
	case known.back:
		if known, err = s.reissued(math.MaxInt64, known.tail); err != nil {
			return err
		}
	}

	consumer, err := stream.Consumer(ctx, s.opts.Durable)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		if known.fresh() && s.opts.Start != (Start{}) {
			return s.begin(ctx, stream)
		}
		if start == 0 {
			start = known.resume(info.State.FirstSeq)
		}
		if len(known.ranges) > 0 {
			s.c.ib.alert(Alert{Kind: AlertConsumerNew, Consumer: s.c.name, Stream: s.stream,
				Detail: fmt.Sprintf("durable %s was not there; put back at sequence %d", s.opts.Durable, start)})
		}
		return s.create(ctx, stream, info, start, jetstream.ConsumerConfig{Durable: s.opts.Durable, AckPolicy: jetstream.AckExplicitPolicy})
	case errors.Is(err, jetstream.ErrNotPullConsumer):
		return s.unfit("it is a push consumer")
	case err != nil:
		return fmt.Errorf("inbox: durable consumer %s of %s: %w", s.opts.Durable, s.stream, err)
	}
	ci := consumer.CachedInfo()
	if ci.Config.AckPolicy != jetstream.AckExplicitPolicy {
		return s.unfit(fmt.Sprintf("its policy is %s", ci.Config.AckPolicy))
	}
	if start == 0 && ci.Delivered.Stream > info.State.LastSeq {
		if info, err = stream.Info(ctx); err != nil { // it may have grown since
			return fmt.Errorf("inbox: stream %s: %w", s.stream, err)
		}
		if ci.Delivered.Stream > info.State.LastSeq {
			// What it says of itself is of a stream that is no more; it would
			// deliver nothing until this one has grown as long.
			start = known.resume(info.State.FirstSeq)
		}
	}
	if start == 0 {
		if start, err = s.reconcile(ctx, stream, info, ci, &known); err != nil {
			return err
		}
	}
	if start == 0 && s.opts.Key != nil && (ci.NumAckPending > 0 || ci.NumWaiting > 0) {
		// What was delivered and did not reach the file would come again after
		// AckWait, behind later messages of its key: begin again there. So would
		// what is delivered to requests that are not ours: those of a connection,
		// say, that we have lost and the broker still has. They end with the consumer.
		if next := known.resume(info.State.FirstSeq); next <= ci.Delivered.Stream || ci.NumWaiting > 0 {
			start = next
		}
	}
	if start != 0 {
		if err := stream.DeleteConsumer(ctx, s.opts.Durable); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return fmt.Errorf("inbox: durable consumer %s of %s: %w", s.opts.Durable, s.stream, err)
		}
		return s.create(ctx, stream, info, start, ci.Config)
	}
	s.cursor = cursor{seq: ci.Delivered.Stream, dseq: ci.Delivered.Consumer, valid: true, broken: ci.NumAckPending > 0}
	s.durable = ci.Config
	if cfg := s.inLine(ci.Config); !reflect.DeepEqual(cfg, ci.Config) {
		return s.put(ctx, "bringing into line", cfg, ci.Config.MaxAckPending, stream.UpdateConsumer)
	}
	return nil
}

// unfit is for a durable consumer that cannot be used nor be brought into line.
func (s *subscription) unfit(why string) error {
	return &fatalError{fmt.Errorf("inbox: durable consumer %s of %s must be a pull consumer with explicit acknowledgement, %s: delete it (nats consumer rm), or set another durable (SubscribeOptions.Durable in Go)",
		s.opts.Durable, s.stream, why)}
}

// create makes the durable consumer, to start at a stream sequence.
func (s *subscription) create(ctx context.Context, stream jetstream.Stream, info *jetstream.StreamInfo, start uint64, cfg jetstream.ConsumerConfig) error {
	cfg = s.inLine(cfg)
	cfg.DeliverPolicy, cfg.OptStartSeq, cfg.OptStartTime = jetstream.DeliverAllPolicy, 0, nil
	s.cursor = cursor{valid: true}
	if start > max(info.State.FirstSeq, 1) {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, start
		s.cursor.seq = start - 1
	}
	if err := s.put(ctx, "making", cfg, 0, stream.CreateConsumer); err != nil {
		return err
	}
	// A broker that lost the file of a stream in a power cut gives a consumer
	// of the new one what it finds of the old one's state. Deleting it deletes
	// that too.
	made, err := stream.Consumer(ctx, s.opts.Durable)
	if err == nil && made.CachedInfo().Delivered.Consumer > 0 {
		if err = stream.DeleteConsumer(ctx, s.opts.Durable); err == nil {
			return s.put(ctx, "making", cfg, 0, stream.CreateConsumer)
		}
	}
	if err != nil {
		return fmt.Errorf("inbox: durable consumer %s of %s: %w", s.opts.Durable, s.stream, err)
	}
	return nil
}

// begin makes the durable consumer for a file that never met the stream, where
// Start says. What lies before is skipped for good: it is accounted for.
func (s *subscription) begin(ctx context.Context, stream jetstream.Stream) error {
	cfg := s.inLine(jetstream.ConsumerConfig{Durable: s.opts.Durable, AckPolicy: jetstream.AckExplicitPolicy})
	switch o := s.opts.Start; {
	case o.New:
		cfg.DeliverPolicy = jetstream.DeliverNewPolicy
	case o.Sequence > 0:
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, o.Sequence
	default:
		cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &o.Time
	}
	if err := s.put(ctx, "making", cfg, 0, stream.CreateConsumer); err != nil {
		return err
	}
	consumer, err := stream.Consumer(ctx, s.opts.Durable)
	if err != nil {
		return fmt.Errorf("inbox: durable consumer %s of %s: %w", s.opts.Durable, s.stream, err)
	}
	before := consumer.CachedInfo().Delivered.Stream
	s.cursor = cursor{seq: before, valid: true}
	if before == 0 {
		return nil
	}
	return s.skip(span{1, before})
}

// codeMaxAckPending is the API's error for more than the server allows.
const codeMaxAckPending = 10121

// put writes the durable consumer's configuration. A server may limit
// MaxAckPending: then it is fallback, 0 for what the server thinks right.
func (s *subscription) put(ctx context.Context, doing string, cfg jetstream.ConsumerConfig, fallback int,
	write func(context.Context, jetstream.ConsumerConfig) (jetstream.Consumer, error)) error {
	consumer, err := write(ctx, cfg)
	var api *jetstream.APIError
	if errors.As(err, &api) && api.ErrorCode == codeMaxAckPending {
		cfg.MaxAckPending = fallback
		consumer, err = write(ctx, cfg)
	}
	if err != nil {
		return fmt.Errorf("inbox: %s durable consumer %s of %s: %w", doing, s.opts.Durable, s.stream, err)
	}
	s.durable = consumer.CachedInfo().Config
	return nil
}

// filter is how a consumer's configuration spells the subjects: servers before
// 2.10 know only one.
func (s *subscription) filter() (one string, many []string) {
	if len(s.opts.Subjects) == 1 {
		return s.opts.Subjects[0], nil
	}
	return "", s.opts.Subjects
}

// maxAckPending leaves room for what is on its way again.
func (s *subscription) maxAckPending() int { return 2*s.opts.Prefetch + 1000 }

// inLine is cfg with all that the promise needs; the rest stays as it is.
func (s *subscription) inLine(cfg jetstream.ConsumerConfig) jetstream.ConsumerConfig {
	cfg.AckWait, cfg.BackOff = s.opts.AckWait, nil
	cfg.MaxDeliver, cfg.InactiveThreshold, cfg.HeadersOnly = -1, 0, false
	if cfg.MaxAckPending >= 0 && cfg.MaxAckPending < s.maxAckPending() {
		cfg.MaxAckPending = s.maxAckPending()
	}
	have := cfg.FilterSubjects
	if cfg.FilterSubject != "" {
		have = []string{cfg.FilterSubject}
	}
	if !slices.Equal(slices.Sorted(slices.Values(have)), slices.Sorted(slices.Values(s.opts.Subjects))) {
		cfg.FilterSubject, cfg.FilterSubjects = s.filter()
	}
	return cfg
}

// lostTail notices a broker that lost the end of its stream (a power cut
// before its sync, a copy restored): the stream ends before what we have, or
// has another message where our last one was. at is a message up to which the
// stream still is what it was.
func (s *subscription) lostTail(ctx context.Context, stream jetstream.Stream, info *jetstream.StreamInfo, known accounted) (lost bool, at tail, err error) {
	if known.tail.seq == 0 {
		return false, tail{}, nil
	}
	if info.State.LastSeq >= known.tail.seq {
		m, err := stream.GetMsg(ctx, known.tail.seq)
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
			return false, tail{}, nil // removed by a limit, or by someone
		case err != nil:
			return false, tail{}, fmt.Errorf("inbox: reading sequence %d of %s: %w", known.tail.seq, s.stream, err)
		case m.Time.UnixNano() == known.tail.time:
			return false, tail{}, nil
		}
	}
	// The stream may have grown again since, so its length does not tell where
	// the two histories part. Look back, in ever longer steps, for a message
	// that is in both. What is taken again is a duplicate by its identity.
	first, last := max(info.State.FirstSeq, 1), min(info.State.LastSeq, known.tail.seq)
	for back := uint64(0); last >= first+back; back = 2*back + 1 {
		at, err := s.have(ctx, stream, last-back, known.tail.time)
		if err != nil {
			return false, tail{}, fmt.Errorf("inbox: reading sequence %d of %s: %w", last-back, s.stream, err)
		}
		if at.seq != 0 {
			return true, at, nil
		}
	}
	return true, tail{seq: first - 1}, nil // no message has the time 0: should it come back, it is another
}

var qHave = newQuery(`
	SELECT 1 FROM inbox_message
	 WHERE seq = ?1 AND hash = ?2 AND stream = ?3 AND stream_seq = ?4`)

// have is the message that the stream has at a sequence, if it is the one that
// this file took by it, not later than at a time of the broker.
func (s *subscription) have(ctx context.Context, stream jetstream.Stream, seq uint64, until int64) (at tail, err error) {
	raw, err := stream.GetMsg(ctx, seq)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return at, nil
	case err != nil:
		return at, err
	case raw.Time.UnixNano() > until:
		return at, nil
	}
	m := Message{
		Headers: Header(raw.Header), Payload: raw.Data, Stream: s.stream,
		pos: &position{created: s.created, seq: seq, time: raw.Time.UnixNano()},
	}
	_ = s.opts.Identity.identify(&m) // one that is no use has an identity too
	hash := contentHash(m.Payload, s.c.opts.CanonicalJSON)
	cols := columns{id: m.ID, footprint: newFootprint(identityDigest(s.c.name, m.rule, m.Source, m.ID))}
	var have bool
	err = s.c.ib.do(s.ctx, func(w *writer) error {
		have = false // this may run again
		source, err := w.name(int64(m.rule), m.Source)
		if err != nil {
			return err
		}
		next, err := w.seq()
		if err != nil {
			return err
		}
		row, _, err := w.find(next>>segmentBits, s.c.id, source, &cols)
		if err != nil || row == 0 {
			return err
		}
		var v [1]driver.Value
		if have, err = w.conn.queryRow(qHave, v[:], row, hash[:], s.acct.id, int64(seq)); err != nil {
			return w.fail("comparing the stream with the file", err)
		}
		return nil
	})
	if err != nil || !have {
		return at, err
	}
	return tail{seq, raw.Time.UnixNano()}, nil
}

// reconcile looks for sequences that the broker holds for acknowledged and
// the file does not have: its file was put back from an older copy, say. It
// returns where the consumer must start again, or 0. What it accounts for as
// skipped is known from then on.
func (s *subscription) reconcile(ctx context.Context, stream jetstream.Stream, info *jetstream.StreamInfo, ci *jetstream.ConsumerInfo, known *accounted) (start uint64, err error) {
	floor := ci.AckFloor.Stream
	if ci.NumAckPending == 0 { // it stands at the last one delivered, behind which some were skipped
		floor = max(floor, ci.Delivered.Stream)
	}
	// A later epoch, or life, without sequences has just begun: nothing in it
	// was consumed before, whatever the broker says.
	if known.fresh() {
		if floor == 0 {
			return 0, nil
		}
		if ci.Delivered.Consumer > 0 || ci.Config.DeliverPolicy != jetstream.DeliverAllPolicy {
			// Somebody consumed up to here before this file was made.
			s.c.ib.alert(Alert{Kind: AlertConsumerNew, Consumer: s.c.name, Stream: s.stream,
				Detail: fmt.Sprintf("durable %s was there before this file; going on after sequence %d", s.opts.Durable, floor)})
		}
		known.ranges = spans{{1, floor}}
		return 0, s.skip(span{1, floor})
	}
	for _, gap := range known.ranges.gaps(1, floor) {
		missing, err := nextMessage(ctx, stream, max(gap.first, info.State.FirstSeq), s.opts.Subjects)
		if err != nil {
			return 0, fmt.Errorf("inbox: looking for sequence %d of %s: %w", gap.first, s.stream, err)
		}
		if missing == 0 || missing > gap.last {
			if err := s.skip(gap); err != nil {
				return 0, err
			}
			known.ranges, _, _, _ = known.ranges.add(gap.first, gap.last)
			continue
		}
		s.c.ib.alert(Alert{Kind: AlertMissing, Consumer: s.c.name, Stream: s.stream,
			Detail: fmt.Sprintf("sequence %d was acknowledged but is not in the file; consuming again from there", missing)})
		return missing, nil
	}
	return 0, nil
}

// nextMessage is the first sequence at or after seq that matches one of the
// subjects and still is in the stream; 0 when there is none.
func nextMessage(ctx context.Context, stream jetstream.Stream, seq uint64, subjects []string) (next uint64, err error) {
	if len(subjects) == 0 {
		subjects = []string{">"}
	}
	for _, subject := range subjects {
		m, err := stream.GetMsg(ctx, max(seq, 1), jetstream.WithGetMsgSubject(subject))
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
		case err != nil:
			return 0, err
		case next == 0 || m.Sequence < next:
			next = m.Sequence
		}
	}
	return next, nil
}
