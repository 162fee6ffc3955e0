package inbox

import "slices"

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

// add includes first..last (sequences start at 1). It returns how many of these
// were new, the span they are in now, and the spans that are no more: the merged
// one begins elsewhere than they did.
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
		if gone = nil; merged.first != s[i].first {
			gone = []span{s[i]}
		}
		s[i] = merged
		return s, fresh, merged, gone
	}
	gone = slices.DeleteFunc(slices.Clone(gone), func(sp span) bool { return sp.first == merged.first })
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
