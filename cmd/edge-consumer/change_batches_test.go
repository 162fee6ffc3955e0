package main

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestBatches(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		in   []chosenMessage
		want []batch
	}{
		{"none", nil, nil},
		{"by source", []chosenMessage{{0, "s", "1", "k"}, {0, "z", "1", ""}, {0, "s", "2", "k"}, {0, "z", "2", ""}},
			[]batch{{"s", []string{"1", "2"}}, {"z", []string{"1", "2"}}}},
		{"sources meet in a key", []chosenMessage{{0, "z", "1", "k"}, {0, "z", "2", ""}, {0, "s", "1", "k"}, {0, "z", "3", "k"}},
			[]batch{{"z", []string{"1", "2"}}, {"s", []string{"1"}}, {"z", []string{"3"}}}},
	} {
		require.Equal(t, tt.want, slices.Collect(batches(tt.in)), tt.name)
	}
}

// TestBatches_KeepTheOrderOfKeys: everything comes once, and the messages of a
// key in the order of arrival, whatever the sources.
func TestBatches_KeepTheOrderOfKeys(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var in []chosenMessage
		want := map[string][]string{}
		for i := range rapid.IntRange(0, 2*changeBatch).Draw(t, "n") {
			m := chosenMessage{
				source: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "source"), id: fmt.Sprint(i),
				key: rapid.SampledFrom([]string{"", "k", "l", "m"}).Draw(t, "key"),
			}
			if in = append(in, m); m.key != "" {
				want[m.key] = append(want[m.key], m.id)
			}
		}
		got, seen := map[string][]string{}, map[string]bool{}
		for b := range batches(in) {
			require.LessOrEqual(t, len(b.ids), changeBatch)
			for _, id := range b.ids {
				require.False(t, seen[id])
				seen[id] = true
				var i int
				_, err := fmt.Sscan(id, &i)
				require.NoError(t, err)
				require.Equal(t, in[i].source, b.source)
				if key := in[i].key; key != "" {
					got[key] = append(got[key], id)
				}
			}
		}
		require.Len(t, seen, len(in))
		require.Equal(t, want, got)
	})
}
