//go:build linux || darwin

package torture

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"edge.example/inbox"
	"github.com/stretchr/testify/require"
)

// TestCrashImages records what the database writes while the inbox works, and
// looks at every state of the disk that a power cut could have left: what was
// acknowledged is there, and nothing acts twice.
func TestCrashImages(t *testing.T) {
	seeded(t)
	want := 1000
	if *long {
		want = 100_000
	}
	r := rand.New(rand.NewPCG(*seed, 1))
	result := row(t, "Crash images")
	recovered, points := 0, 0
	for round := 0; result.Images < want; round++ {
		log, all := record(t, r)
		// In the long form every point of the log, otherwise some.
		step := max(1, len(log)*int(Losses)/want)
		acked := map[string]bool{}
		marked := 0
		next := r.IntN(step) + 1
		v := newViewer(t)
		err := Replay(log, func(i int, c *Crash) error {
			for ; marked <= i; marked++ {
				if log[marked].Kind == Mark {
					acked[log[marked].Mark] = true
				}
			}
			if next--; next > 0 {
				return nil
			}
			next = step
			points++
			for loss := range Losses {
				if loss > All && c.Pending() < 2 {
					continue
				}
				result.Images++
				deep := result.Images%40 == 0
				if deep {
					recovered++
				}
				if err := v.look(c.Image(loss, r), acked, all, deep); err != nil {
					return fmt.Errorf("after operation %d of %d (%s %s), loss %d: %w", i, len(log), log[i].Kind, log[i].File, loss, err)
				}
			}
			return nil
		})
		require.NoError(t, err, "-seed %d, round %d", *seed, round)
	}
	t.Logf("%d images at %d points; %d of them taken into service again", result.Images, points, recovered)
}

// record lets an inbox work on a watched disk: deliveries, retries,
// redeliveries, conflicts, checkpoints, a clean end and a new start.
func record(t *testing.T, r *rand.Rand) (log []Op, all []inbox.Message) {
	dir := scratch(t)
	disk, unwatch := Watch(dir)
	defer unwatch()
	all = messages(0, 120)
	at := 0
	for life := range 3 {
		l, err := open(t, path(dir), disk)
		require.NoError(t, err)
		l.run()
		for at < len(all)*(life+1)/3 {
			n := min(1+r.IntN(12), len(all)-at)
			group := all[at : at+n : at+n]
			for _, m := range group {
				if r.IntN(6) == 0 {
					l.fails(m.ID, 1+r.IntN(2))
				}
			}
			if r.IntN(3) == 0 { // one comes twice at once
				group = append(group, group[r.IntN(n)])
			}
			if at > 0 { // some come again, one with another content
				group = append(group, all[r.IntN(at)])
				if r.IntN(4) == 0 {
					group = append(group, other(all[r.IntN(at)]))
				}
			}
			l.group(group...)
			at += n
			switch r.IntN(6) {
			case 0:
				checkpoint(t, path(dir), "PASSIVE")
			case 1:
				checkpoint(t, path(dir), "TRUNCATE")
			case 2:
				l.idle()
			}
		}
		l.idle()
		require.NoError(t, l.close())
	}
	return disk.Log(), all
}

// checkpoint moves the log into the database, as another process would.
func checkpoint(t *testing.T, path, how string) {
	db, err := sql.Open("sqlite", path+"?_busy_timeout=5000")
	require.NoError(t, err)
	defer db.Close()
	_, err = db.Exec(`PRAGMA wal_checkpoint(` + how + `)`)
	require.NoError(t, err)
}

// A viewer looks at images, one after the other, in one folder.
type viewer struct {
	t   *testing.T
	dir string
}

func newViewer(t *testing.T) *viewer { return &viewer{t, scratch(t)} }

func (v *viewer) look(image Files, acked map[string]bool, all []inbox.Message, deep bool) error {
	left, err := os.ReadDir(v.dir)
	if err != nil {
		return err
	}
	for _, e := range left {
		if err := os.Remove(filepath.Join(v.dir, e.Name())); err != nil {
			return err
		}
	}
	if err := image.Write(v.dir); err != nil {
		return err
	}
	if err := v.inspect(acked); err != nil {
		return err
	}
	if deep {
		return v.recover(all)
	}
	return nil
}

// inspect opens the file as any program would.
func (v *viewer) inspect(acked map[string]bool) error {
	ctx := context.Background()
	db, err := sql.Open("sqlite", path(v.dir))
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	var tables int
	if err := db.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE name IN ('inbox_message', 'effects')`).Scan(&tables); err != nil {
		return err
	}
	if tables < 2 {
		if len(acked) > 0 {
			return fmt.Errorf("%d messages were acknowledged, and there are no tables", len(acked))
		}
		return nil
	}
	if err := violation(ctx, db); err != nil {
		return err
	}
	there, err := ids(ctx, db)
	if err != nil {
		return err
	}
	for id := range acked {
		if !there[id] {
			return fmt.Errorf("message %s was acknowledged and is lost", id)
		}
	}
	return nil
}

// recover takes the file into service again: everything is delivered once more,
// as a broker would that has lost every acknowledgement.
func (v *viewer) recover(all []inbox.Message) error {
	l, err := open(v.t, path(v.dir), nil)
	if err != nil {
		return fmt.Errorf("opening again: %w", err)
	}
	l.run()
	l.group(all...)
	l.idle()
	if err := l.close(); err != nil {
		return err
	}
	if _, err := os.Stat(path(v.dir) + "-wal"); err == nil {
		return fmt.Errorf("a -wal is left after a clean end")
	}
	return v.complete(all)
}

// complete holds a file to everything having been delivered, and nothing twice.
func (v *viewer) complete(all []inbox.Message) error {
	if open := openIn(v.dir); len(open) > 0 {
		return fmt.Errorf("left open after a clean end: %v", open)
	}
	db, err := sql.Open("sqlite", path(v.dir))
	if err != nil {
		return err
	}
	defer db.Close()
	ctx := context.Background()
	if err := violation(ctx, db); err != nil {
		return fmt.Errorf("after everything was delivered again: %w", err)
	}
	var applied, dead, twice int
	err = db.QueryRowContext(ctx, `
		SELECT (SELECT count(*) FROM inbox_message WHERE status = 4), (SELECT count(*) FROM inbox_message WHERE status = 3),
		       (SELECT count(*) FROM (SELECT 1 FROM effects GROUP BY id HAVING count(*) > 1))`).Scan(&applied, &dead, &twice)
	if err != nil {
		return err
	}
	bad := 0
	for _, m := range all {
		if strings.HasPrefix(m.ID, "bad") {
			bad++
		}
	}
	if applied != len(all)-bad || dead != bad || twice != 0 {
		return fmt.Errorf("after everything was delivered again: %d applied, %d dead, %d twice, of %d and %d bad", applied, dead, twice, len(all), bad)
	}
	return nil
}

// openIn are the files in a folder that this process has open, where the system
// tells.
func openIn(dir string) (names []string) {
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, fd := range fds {
		name, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err == nil && strings.HasPrefix(name, dir+"/") {
			names = append(names, name)
		}
	}
	return names
}
