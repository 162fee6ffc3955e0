package inbox

// Checkpoints beside the writer. What the log has is copied into the database
// in steps, on a connection of its own, while the writer goes on. The writer
// is left the last step: SQLite begins the log anew only when a transaction
// begins and all of it is copied, so the writer's own wal_autocheckpoint
// copies the rest between two of its transactions.
//
// Nothing depends on it. When it fails, the writer's checkpoint has more to do.

import (
	"context"
	"database/sql/driver"
	"errors"
	"net/url"
	"strconv"

	"modernc.org/sqlite"
)

// checkpointStep is how many pages the writer adds to the log before they are
// copied. A page that several steps have is written by each of them: with
// messages one by one 2,000 write 1.5 % more bytes than 4,000, and 1,000 2.6 %
// more than 2,000.
const checkpointStep = walAutocheckpoint / 4

// checkpointing copies the log whenever it grew, until the inbox is closed.
// While it does, the writer cannot, and the log goes on: where copying is
// slower than writing it would never begin anew. So when the log is as long as
// it may get, the next step is the writer's.
func (ib *Inbox) checkpointing(ctx context.Context) {
	c := checkpointer{path: ib.path}
	defer c.close()
	for {
		select {
		case <-ib.w.grew:
		case <-ctx.Done():
			return
		}
		pages, err := c.copy(ctx)
		if err != nil {
			c.close() // it is opened again
			continue
		}
		if pages < walAutocheckpoint-checkpointStep {
			continue
		}
		select {
		case <-ib.w.grew: // meanwhile
		default:
		}
		select {
		case <-ib.w.grew: // at least one transaction since
		case <-ctx.Done():
			return
		}
	}
}

type checkpointer struct {
	path string
	conn driver.Conn // nil: not open
}

// copy copies all that no reader forbids, and says how many pages the log has.
func (c *checkpointer) copy(ctx context.Context) (pages int64, err error) {
	if c.conn == nil {
		base, err := sqlite.NewConnector(dsn(c.path, url.Values{
			"mode":          {"rw"},
			"_busy_timeout": {strconv.Itoa(busyTimeout)},
			"_synchronous":  {"FULL"}, // the log before the database
			"_query_only":   {"1"},    // it changes nothing that anybody reads
		}))
		if err != nil {
			return 0, err
		}
		if c.conn, err = base.Connect(ctx); err != nil {
			return 0, err
		}
	}
	rows, err := c.conn.(driver.QueryerContext).QueryContext(context.Background(), `PRAGMA wal_checkpoint(PASSIVE)`, nil)
	if err != nil {
		return 0, err
	}
	var v [3]driver.Value // busy, pages in the log, of those copied
	if err = rows.Next(v[:]); err == nil {
		pages, _ = v[1].(int64)
	}
	return pages, errors.Join(err, rows.Close())
}

func (c *checkpointer) close() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}
