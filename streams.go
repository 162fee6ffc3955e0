package inbox

// Accounting: which sequences of each stream this file answers for. They are
// kept as intervals, written in the transaction that accounts for them, so
// the inbox can prove that nothing is missing, can put a lost consumer back
// at the right place, and notices a broker that lost its tail.

import (
	"database/sql/driver"
	"slices"
)

// An account is what one consumer answers for in one life of one stream.
// The writer goroutine owns it.
type account struct {
	id     int64
	ranges spans
	tail   tail
	stale  bool // the transaction that changed it was lost: read it again

	skipped, duplicates, conflicts int64 // added in this transaction
	touched                        map[uint64]struct{}
}

// A tail is the last message of a stream that is accounted for: its sequence,
// and when the broker stored it, ns since 1970.
type tail struct {
	seq  uint64
	time int64
}

var (
	qRanges    = newQuery(`SELECT first_seq, last_seq FROM inbox_range WHERE stream = ?1 ORDER BY first_seq`)
	qTail      = newQuery(`SELECT tail_seq, tail_time FROM inbox_stream WHERE id = ?1`)
	qRangeSet  = newQuery(`INSERT INTO inbox_range (stream, first_seq, last_seq) VALUES (?1, ?2, ?3) ON CONFLICT (stream, first_seq) DO UPDATE SET last_seq = excluded.last_seq`)
	qRangeDrop = newQuery(`DELETE FROM inbox_range WHERE stream = ?1 AND first_seq = ?2`)
	qStreamSet = newQuery(`
		UPDATE inbox_stream SET tail_seq = ?2, tail_time = ?3,
		       skipped = skipped + ?4, duplicates = duplicates + ?5, conflicts = conflicts + ?6
		 WHERE id = ?1`)
)

// load reads a from the file.
func (a *account) load(w *writer) error {
	a.ranges = a.ranges[:0]
	a.skipped, a.duplicates, a.conflicts = 0, 0, 0
	a.touched = map[uint64]struct{}{}
	a.stale = false
	var v [2]driver.Value
	err := w.conn.each(qRanges, v[:], func() error {
		a.ranges = append(a.ranges, span{uint64(v[0].(int64)), uint64(v[1].(int64))})
		return nil
	}, a.id)
	if err == nil {
		var found bool
		if found, err = w.conn.queryRow(qTail, v[:], a.id); found {
			a.tail = tail{uint64(v[0].(int64)), v[1].(int64)}
		}
	}
	if err != nil {
		return w.fail("reading the sequences accounted for", err)
	}
	return nil
}

// account accounts for a delivery that has come to an outcome.
func (w *writer) account(p *position, o Outcome) error {
	if p == nil {
		return nil
	}
	a := p.acct
	if a.stale {
		if err := a.load(w); err != nil {
			return err
		}
	}
	if p.from < p.seq {
		a.skipped += int64(a.add(p.from, p.seq-1))
	}
	if a.add(p.seq, p.seq) == 1 {
		switch o {
		case Duplicate:
			a.duplicates++
		case Conflict:
			a.conflicts++
		}
	}
	if p.seq >= a.tail.seq {
		a.tail = tail{p.seq, p.time}
	}
	w.accounts[a] = struct{}{}
	return nil
}

// add accounts for first..last and returns how many were new.
func (a *account) add(first, last uint64) (fresh uint64) {
	var merged span
	var gone []span
	a.ranges, fresh, merged, gone = a.ranges.add(first, last)
	if fresh == 0 {
		return 0
	}
	for _, sp := range gone {
		a.touched[sp.first] = struct{}{}
	}
	a.touched[merged.first] = struct{}{}
	return fresh
}

// flush writes what changed: one statement for the interval that grew, in the
// usual case, and one for the tail.
func (a *account) flush(w *writer) error {
	for first := range a.touched {
		i, found := a.ranges.at(first)
		var err error
		if found && a.ranges[i].first == first {
			_, err = w.conn.exec(qRangeSet, a.id, int64(first), int64(a.ranges[i].last))
		} else {
			_, err = w.conn.exec(qRangeDrop, a.id, int64(first))
		}
		if err != nil {
			return err
		}
	}
	clear(a.touched)
	_, err := w.conn.exec(qStreamSet, a.id, int64(a.tail.seq), a.tail.time, a.skipped, a.duplicates, a.conflicts)
	a.skipped, a.duplicates, a.conflicts = 0, 0, 0
	return err
}

// accounted is a copy of an account, for goroutines other than the writer's.
type accounted struct {
	ranges spans
	tail   tail
	epoch  int64
	again  bool // the file knows another life of this stream
	back   bool // it is an earlier one that was put back
}

// fresh reports whether nothing of the stream ever came to this file.
func (k accounted) fresh() bool { return len(k.ranges) == 0 && k.epoch == 0 && !k.again }

// resume is the first sequence not accounted for, at or after first.
func (k accounted) resume(first uint64) uint64 {
	first = max(first, 1)
	if len(k.ranges) == 0 {
		return first
	}
	last := k.ranges[len(k.ranges)-1].last
	if gaps := k.ranges.gaps(first, last); len(gaps) > 0 {
		return gaps[0].first
	}
	return max(first, last+1)
}

var (
	qStreamFind = newQuery(`
		SELECT id, epoch, id = (SELECT max(id) FROM inbox_stream WHERE consumer = ?1 AND stream = ?2) FROM inbox_stream
		 WHERE consumer = ?1 AND stream = ?2 AND created = ?3 ORDER BY epoch DESC LIMIT 1`)
	qStreamElse = newQuery(`SELECT 1 FROM inbox_stream WHERE consumer = ?1 AND stream = ?2 AND created <> ?3 LIMIT 1`)
	qStreamAdd  = newQuery(`INSERT INTO inbox_stream (consumer, stream, created, epoch, durable) VALUES (?1, ?2, ?3, ?4, ?5)`)
	qDurable    = newQuery(`UPDATE inbox_stream SET durable = ?2 WHERE id = ?1 AND durable <> ?2`)
	qRangeCopy  = newQuery(`
		INSERT INTO inbox_range (stream, first_seq, last_seq)
		SELECT ?2, first_seq, min(last_seq, ?3) FROM inbox_range WHERE stream = ?1 AND first_seq <= ?3`)
	qSkippedCopy = newQuery(`
		UPDATE inbox_stream SET skipped = (SELECT coalesce(sum(last_seq - first_seq + 1), 0) FROM inbox_range WHERE stream = ?1)
		 WHERE id = ?1`)
)

// openAccount finds the account of this life of the stream, or begins it.
func (s *subscription) openAccount() (accounted, error) {
	// When s.ctx ends, do returns while the job may still run: what it writes
	// is not looked at then, here and below.
	var known accounted
	var acct *account
	isNew := false
	err := s.c.ib.do(s.ctx, func(w *writer) error {
		stream, err := w.name(kindStream, s.stream)
		if err != nil {
			return err
		}
		var v [3]driver.Value
		found, err := w.conn.queryRow(qStreamFind, v[:], s.c.id, stream, s.created)
		if err != nil {
			return w.fail("finding the account of a stream", err)
		}
		again, err := w.conn.queryRow(qStreamElse, make([]driver.Value, 1), s.c.id, stream, s.created)
		if err != nil {
			return w.fail("finding the account of a stream", err)
		}
		if found {
			acct = w.accountOf(v[0].(int64))
			if _, err := w.conn.exec(qDurable, acct.id, s.opts.Durable); err != nil {
				return w.fail("naming the durable consumer", err)
			}
		} else {
			isNew = again
			if acct, err = w.addAccount(s.c.id, stream, s.created, 0, s.opts.Durable); err != nil {
				return err
			}
		}
		known, err = acct.copy(w)
		known.again = again
		if found {
			known.epoch, known.back = v[1].(int64), v[2] == int64(0)
		}
		return err
	})
	if err != nil {
		return accounted{}, err
	}
	s.acct = acct
	if isNew {
		s.c.ib.alert(Alert{Kind: AlertStreamNew, Consumer: s.c.name, Stream: s.stream,
			Detail: "the stream was deleted and made anew: its sequences begin again"})
	}
	return known, nil
}

// reissued begins a new epoch of the same stream: up to sequence at all is as
// it was, and there the stream stands.
func (s *subscription) reissued(at uint64, stands tail) (accounted, error) {
	var known accounted
	var acct *account
	err := s.c.ib.do(s.ctx, func(w *writer) error {
		stream, err := w.name(kindStream, s.stream)
		if err != nil {
			return err
		}
		var v [3]driver.Value
		if _, err := w.conn.queryRow(qStreamFind, v[:], s.c.id, stream, s.created); err != nil {
			return w.fail("finding the account of a stream", err)
		}
		old, epoch := v[0].(int64), v[1].(int64)
		if acct, err = w.addAccount(s.c.id, stream, s.created, epoch+1, s.opts.Durable); err != nil {
			return err
		}
		if _, err := w.conn.exec(qRangeCopy, old, acct.id, int64(at)); err != nil {
			return w.fail("beginning a new epoch of a stream", err)
		}
		// Their rows stay with the old epoch.
		if _, err := w.conn.exec(qSkippedCopy, acct.id); err != nil {
			return w.fail("beginning a new epoch of a stream", err)
		}
		if _, err := w.conn.exec(qStreamSet, acct.id, int64(stands.seq), stands.time, int64(0), int64(0), int64(0)); err != nil {
			return w.fail("beginning a new epoch of a stream", err)
		}
		known, err = acct.copy(w)
		known.epoch = epoch + 1
		return err
	})
	if err != nil {
		return accounted{}, err
	}
	s.acct = acct
	return known, nil
}

func (w *writer) addAccount(consumer, stream, created, epoch int64, durable string) (*account, error) {
	var v [1]driver.Value
	_, err := w.conn.exec(qStreamAdd, consumer, stream, created, epoch, durable)
	if err == nil {
		_, err = w.conn.queryRow(qLastRow, v[:])
	}
	if err != nil {
		return nil, w.fail("beginning the account of a stream", err)
	}
	return w.accountOf(v[0].(int64)), nil
}

// accountOf is the one account with a number: there are never two opinions.
func (w *writer) accountOf(id int64) *account {
	a := w.opened[id]
	if a == nil {
		a = &account{id: id, stale: true}
		w.opened[id] = a
	}
	return a
}

// copy reads the account as this transaction sees it.
func (a *account) copy(w *writer) (accounted, error) {
	if a.stale {
		if err := a.load(w); err != nil {
			return accounted{}, err
		}
		// Should this transaction be lost, so is what was read in it.
		w.accounts[a] = struct{}{}
	}
	return accounted{ranges: slices.Clone(a.ranges), tail: a.tail}, nil
}

// skip accounts for sequences that were never ours.
func (s *subscription) skip(sp span) error {
	a := s.acct
	return s.c.ib.do(s.ctx, func(w *writer) error {
		if a.stale {
			if err := a.load(w); err != nil {
				return err
			}
		}
		a.skipped += int64(a.add(sp.first, sp.last))
		w.accounts[a] = struct{}{}
		return nil
	})
}
