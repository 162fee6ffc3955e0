package inbox

// Accounting: which sequences of each stream this file answers for. They are
// kept as intervals, written in the transaction that accounts for them, so
// the inbox can prove that nothing is missing, can put a lost consumer back
// at the right place, and notices a broker that lost its tail.

import (
	"database/sql/driver"
	"slices"
)

// A span is an interval of sequences, both ends included.
type span struct{ first, last uint64 }

// spans are sorted; they neither touch nor overlap.
type spans []span

// has reports whether seq is in s.
func (s spans) has(seq uint64) bool {
	i, found := s.at(seq)
	return found && s[i].first <= seq
}

// at finds the first span that ends at or after seq.
func (s spans) at(seq uint64) (int, bool) {
	if n := len(s); n > 0 && s[n-1].last < seq { // new ones come at the end
		return n, false
	}
	i, _ := slices.BinarySearchFunc(s, seq, func(sp span, seq uint64) int {
		switch {
		case sp.last < seq:
			return -1
		case sp.last > seq:
			return 1
		}
		return 0
	})
	return i, i < len(s)
}

// add includes first..last (sequences start at 1). It returns how many of these were new, the span
// they are in now, and the spans that it replaces.
func (s spans) add(first, last uint64) (after spans, fresh uint64, merged span, gone []span) {
	i, _ := s.at(first - 1) // a span that ends just before first touches it
	j := i
	merged = span{first, last}
	fresh = last - first + 1
	for ; j < len(s) && s[j].first <= last+1; j++ {
		lo, hi := max(first, s[j].first), min(last, s[j].last)
		if lo <= hi {
			fresh -= hi - lo + 1
		}
		merged.first, merged.last = min(merged.first, s[j].first), max(merged.last, s[j].last)
	}
	gone = s[i:j]
	if len(gone) == 1 && i == len(s)-1 { // it grew at the end: the usual case
		gone = []span{s[i]}
		s[i] = merged
		return s, fresh, merged, gone
	}
	gone = slices.Clone(gone)
	return slices.Replace(s, i, j, merged), fresh, merged, gone
}

// gaps are the sequences of first..last that are not in s.
func (s spans) gaps(first, last uint64) (gaps spans) {
	next := first
	for _, sp := range s {
		if sp.last < next {
			continue
		}
		if sp.first > last {
			break
		}
		if sp.first > next {
			gaps = append(gaps, span{next, sp.first - 1})
		}
		next = sp.last + 1
	}
	if next <= last && next >= first {
		gaps = append(gaps, span{next, last})
	}
	return gaps
}

// count is how many sequences are in s.
func (s spans) count() (n uint64) {
	for _, sp := range s {
		n += sp.last - sp.first + 1
	}
	return n
}

// An account is what one consumer answers for in one life of one stream.
// The writer goroutine owns it.
type account struct {
	id     int64
	ranges spans
	tail   uint64
	tailAt int64
	dirty  bool // changed in this transaction
	stale  bool // the transaction that changed it was lost: read it again

	skipped, duplicates, conflicts int64 // added in this transaction
	touched                        map[uint64]struct{}
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
			a.tail, a.tailAt = uint64(v[0].(int64)), v[1].(int64)
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
	if p.seq >= a.tail {
		a.tail, a.tailAt = p.seq, p.time
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
		if sp.first != merged.first {
			a.touched[sp.first] = struct{}{}
		}
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
	_, err := w.conn.exec(qStreamSet, a.id, int64(a.tail), a.tailAt, a.skipped, a.duplicates, a.conflicts)
	a.skipped, a.duplicates, a.conflicts = 0, 0, 0
	return err
}
