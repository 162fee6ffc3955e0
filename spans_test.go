package inbox

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

func TestSpans(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		had         spans
		first, last uint64
		want        spans
		fresh       uint64
		merged      span
		gone        []span
	}{
		{nil, 1, 1, spans{{1, 1}}, 1, span{1, 1}, nil},
		{nil, 5, 9, spans{{5, 9}}, 5, span{5, 9}, nil},
		{spans{{1, 3}}, 4, 4, spans{{1, 4}}, 1, span{1, 4}, nil},
		{spans{{1, 3}}, 2, 3, spans{{1, 3}}, 0, span{1, 3}, nil},
		{spans{{1, 3}}, 3, 5, spans{{1, 5}}, 2, span{1, 5}, nil},
		{spans{{1, 3}}, 5, 5, spans{{1, 3}, {5, 5}}, 1, span{5, 5}, nil},
		{spans{{3, 3}}, 1, 1, spans{{1, 1}, {3, 3}}, 1, span{1, 1}, nil},
		{spans{{3, 3}}, 2, 2, spans{{2, 3}}, 1, span{2, 3}, []span{{3, 3}}},
		{spans{{1, 1}, {3, 3}}, 2, 2, spans{{1, 3}}, 1, span{1, 3}, []span{{3, 3}}},
		{spans{{1, 1}, {3, 3}, {7, 8}}, 2, 5, spans{{1, 5}, {7, 8}}, 3, span{1, 5}, []span{{3, 3}}},
		{spans{{2, 2}, {4, 4}, {6, 6}}, 1, 9, spans{{1, 9}}, 6, span{1, 9}, []span{{2, 2}, {4, 4}, {6, 6}}},
		{spans{{2, 2}, {9, 9}}, 4, 5, spans{{2, 2}, {4, 5}, {9, 9}}, 2, span{4, 5}, nil},
	} {
		got, fresh, merged, gone := slices.Clone(tc.had).add(tc.first, tc.last)
		assert.Equal(t, tc.want, got, "%v + %d..%d", tc.had, tc.first, tc.last)
		assert.Equal(t, tc.fresh, fresh, "%v + %d..%d", tc.had, tc.first, tc.last)
		assert.Equal(t, tc.merged, merged, "%v + %d..%d", tc.had, tc.first, tc.last)
		assert.ElementsMatch(t, tc.gone, gone, "%v + %d..%d", tc.had, tc.first, tc.last)
	}

	s := spans{{2, 3}, {6, 6}, {9, 12}}
	for _, tc := range []struct {
		first, last uint64
		want        spans
	}{
		{1, 12, spans{{1, 1}, {4, 5}, {7, 8}}},
		{2, 3, nil},
		{3, 6, spans{{4, 5}}},
		{4, 4, spans{{4, 4}}},
		{5, 7, spans{{5, 5}, {7, 7}}},
		{12, 15, spans{{13, 15}}},
		{14, 15, spans{{14, 15}}},
		{1, 1, spans{{1, 1}}},
		{1, 0, nil},
		{9, 3, nil},
	} {
		assert.Equal(t, tc.want, s.gaps(tc.first, tc.last), "%d..%d", tc.first, tc.last)
	}
	assert.Equal(t, spans{{1, 4}}, spans(nil).gaps(1, 4))
	assert.EqualValues(t, 7, s.count())

	for seq, want := range map[uint64]int{1: 0, 2: 0, 3: 0, 4: 1, 6: 1, 7: 2, 12: 2, 13: 3} {
		i, found := s.at(seq)
		assert.Equal(t, want, i, seq)
		assert.Equal(t, want < 3, found, seq)
	}
	_, found := spans(nil).at(1)
	assert.False(t, found)
	for seq := uint64(1); seq <= 14; seq++ {
		assert.Equal(t, slices.Contains([]uint64{2, 3, 6, 9, 10, 11, 12}, seq), s.has(seq), seq)
	}
}

// TestSpans_LikeASet drives an account against a plain set of integers, with
// what flush writes to the table as its mirror.
func TestSpans_LikeASet(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const most = 60
		a := &account{touched: map[uint64]struct{}{}}
		set := map[uint64]bool{}
		table := map[uint64]uint64{} // inbox_range
		seq := rapid.Uint64Range(1, most)
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				first := seq.Draw(t, "first")
				last := min(first+rapid.Uint64Range(0, 9).Draw(t, "more"), most)
				var fresh uint64
				for i := first; i <= last; i++ {
					if !set[i] {
						fresh++
					}
					set[i] = true
				}
				assert.Equal(t, fresh, a.add(first, last), "fresh")
			},
			"flush": func(t *rapid.T) {
				for first := range a.touched {
					if i, found := a.ranges.at(first); found && a.ranges[i].first == first {
						table[first] = a.ranges[i].last
					} else {
						delete(table, first)
					}
				}
				clear(a.touched)
				want := map[uint64]uint64{}
				for _, sp := range a.ranges {
					want[sp.first] = sp.last
				}
				assert.Equal(t, want, table, "what was touched is what changed")
			},
			"gaps": func(t *rapid.T) {
				first, last := seq.Draw(t, "first"), seq.Draw(t, "last")
				var want []uint64
				for i := first; i <= last; i++ {
					if !set[i] {
						want = append(want, i)
					}
				}
				var got []uint64
				for _, g := range a.ranges.gaps(first, last) {
					for i := g.first; i <= g.last; i++ {
						got = append(got, i)
					}
				}
				assert.Equal(t, want, got, "gaps of %d..%d", first, last)
			},
			"": func(t *rapid.T) {
				for i, sp := range a.ranges {
					assert.LessOrEqual(t, sp.first, sp.last)
					assert.True(t, i == 0 || a.ranges[i-1].last+1 < sp.first, "%v", a.ranges)
				}
				for i := uint64(1); i <= most; i++ {
					assert.Equal(t, set[i], a.ranges.has(i), "%d in %v", i, a.ranges)
				}
				assert.EqualValues(t, len(set), a.ranges.count())
				k := accounted{ranges: a.ranges}
				for first := uint64(1); first <= most; first++ {
					next := first
					for set[next] {
						next++
					}
					assert.Equal(t, next, k.resume(first), "after %v from %d", a.ranges, first)
				}
			},
		})
	})
}
