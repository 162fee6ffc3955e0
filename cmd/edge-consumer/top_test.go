package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSample_Rates(t *testing.T) {
	t.Parallel()
	report := func(consumer string, applied, duplicates, failures int64) *statusReport {
		return &statusReport{Consumers: []consumerStatus{{Consumer: consumer, Applied: applied, Duplicates: duplicates, Failures: failures}}}
	}
	at := time.Now()
	first := (&sample{}).next(at, report("orders", 100, 10, 1))
	require.Empty(t, first.rates, "nothing to compare with")
	second := first.next(at.Add(2*time.Second), report("orders", 110, 10, 2))
	require.Equal(t, map[string]rates{"orders": {5, 0, 0.5}}, second.rates)
	require.Equal(t, rates{3, 0, 0}, func() rates { n := first.next(at.Add(time.Second), report("new", 3, 0, 0)); return n.rates["new"] }())
	other := second.next(at.Add(3*time.Second), report("orders", 7, 0, 0))
	require.Empty(t, other.rates, "another file")
	still := second.next(second.at, report("orders", 200, 10, 2))
	require.Empty(t, still.rates, "no time went by")
}

func TestPerSecond(t *testing.T) {
	t.Parallel()
	for in, want := range map[float64]string{0: "0.0", 0.25: "0.2", 99.9: "99.9", 100: "100", 12345.6: "12,346"} {
		require.Equal(t, want, perSecond(in))
	}
}
