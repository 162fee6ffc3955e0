package inbox

import (
	"database/sql"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAudit_Damage: what a damaged file has lost shows, whatever it is.
func TestAudit_Damage(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]string{
		"a range without its account": `INSERT INTO inbox_range VALUES (99, 1, 10)`,
		"a row without its account":   `UPDATE inbox_message SET stream = 99, stream_seq = 1`,
		"a range lost":                `DELETE FROM inbox_range`,
		"a row lost":                  `DELETE FROM inbox_message`,
		"a range too long":            `UPDATE inbox_range SET last_seq = last_seq + 1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, nil)
			c := l.consumer("c", nil, nil)
			require.NoError(t, l.ib.do(ctxBG, func(w *writer) error {
				a, err := w.addAccount(c.id, 1, 1, 0, "c")
				if err != nil {
					return err
				}
				d, err := c.delivery(Message{ID: "1", pos: &position{acct: a, seq: 1, from: 1}})
				d.ctx, d.done = c.ctx, func(Outcome, error) {}
				w.group = append(w.group, d)
				return err
			}))
			l.close()
			db, err := sql.Open("sqlite", dsn(l.path, url.Values{"mode": {"rw"}}))
			require.NoError(t, err)
			defer db.Close()
			audit := func() (sound bool) {
				l.open()
				defer l.close()
				audits, err := l.ib.Audit(ctxBG)
				require.NoError(t, err)
				require.NotEmpty(t, audits)
				sound = true
				for _, a := range audits {
					sound = sound && len(a.Missing) == 0 && a.Unexplained == 0
				}
				return sound
			}
			assert.True(t, audit())
			tx, err := db.Begin()
			require.NoError(t, err)
			_, err = tx.Exec(damage)
			require.NoError(t, err)
			require.NoError(t, tx.Commit())
			assert.False(t, audit())
			// The lab's own check would find it as well.
			l.path = newLab(t, nil).path + "-none"
			l.open()
			l.update(`CREATE TABLE effects (n INTEGER PRIMARY KEY, seq INTEGER NOT NULL, id TEXT NOT NULL)`)
		})
	}
}
