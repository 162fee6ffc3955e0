//go:build linux || darwin

package torture

import (
	"sync/atomic"
	"testing"
	"time"

	"edge.example/inbox"
	"github.com/stretchr/testify/require"
)

// TestClockJumps lets messages fail by one clock and be tried again by another:
// none waits for a time that will not come.
func TestClockJumps(t *testing.T) {
	r := row(t, "Clock jumps")
	const year = 365 * 24 * time.Hour
	clocks := []time.Duration{-10 * year, -time.Hour, 0, time.Hour, 10 * year}
	for _, from := range clocks {
		for _, to := range clocks {
			if from == to {
				continue
			}
			var ahead atomic.Int64
			ahead.Store(int64(from))
			var opts inbox.Options
			setClock(&opts, func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) })
			dir := scratch(t)
			l, err := openWith(t, path(dir), nil, &opts)
			require.NoError(t, err)
			all := messages(1, 12)
			for _, m := range all {
				l.fails(m.ID, 2)
			}
			l.group(all[:6]...) // nobody tries them again yet
			ahead.Store(int64(to))
			l.run()
			l.group(all[6:]...)
			l.idle()
			require.NoError(t, l.close())
			require.NoError(t, (&viewer{t, dir}).complete(all), "from %v to %v", from, to)
			r.Faults++
		}
	}
}
