package inbox

import "database/sql/driver"

// counts are what one transaction adds to a row of inbox_consumer. They are
// written before its COMMIT, so they are as true as the rows they count.
type counts struct {
	byStatus                                          [6]int64 // indexed by status
	applied, duplicates, conflicts, retries, failures int64
}

func (n *counts) status(s status, d int64) { n.byStatus[s] += d }

// count is the counts of a consumer in this transaction.
func (w *writer) count(consumer int64) *counts {
	n := w.counts[consumer]
	if n == nil {
		n = &counts{}
		w.counts[consumer] = n
	}
	return n
}

var qCount = newQuery(`
	UPDATE inbox_consumer SET
	       pending = pending + ?2, processing = processing + ?3, completed = completed + ?4,
	       dead = dead + ?5, discarded = discarded + ?6,
	       applied = applied + ?7, duplicates = duplicates + ?8, conflicts = conflicts + ?9,
	       retries = retries + ?10, failures = failures + ?11
	 WHERE consumer = ?1`)

// flush writes what the transaction gathered: counters and sequences.
func (w *writer) flush() error {
	for consumer, n := range w.counts {
		if *n == (counts{}) {
			continue
		}
		if err := w.conn.addCounts(consumer, n); err != nil {
			return err
		}
		*n = counts{}
	}
	for a := range w.accounts {
		if err := a.flush(w); err != nil {
			return err
		}
	}
	return nil
}

func (c *writeConn) addCounts(consumer int64, n *counts) error {
	_, err := c.exec(qCount, consumer,
		n.byStatus[statusPending], n.byStatus[statusProcessing], n.byStatus[statusCompleted],
		n.byStatus[statusDead], n.byStatus[statusDiscarded],
		n.applied, n.duplicates, n.conflicts, n.retries, n.failures)
	return err
}

var (
	qRegister  = newQuery(`INSERT INTO inbox_consumer (consumer) VALUES (?1) ON CONFLICT DO NOTHING`)
	qConsumers = newQuery(`SELECT consumer, paused FROM inbox_consumer`)
	qUnblock   = newQuery(`
		UPDATE inbox_message SET next_at = ?2, retry_delay = 0
		 WHERE status = 1 AND next_at IS NULL AND consumer = ?1 AND key IS NOT NULL
		   AND NOT EXISTS (SELECT 1 FROM inbox_message e
		                    WHERE e.consumer = ?1 AND e.key = inbox_message.key AND e.key IS NOT NULL
		                      AND e.seq < inbox_message.seq
		                      AND e.status <= 3 AND (e.status <> 3 OR ?3))`)
)

// register makes c known to the file and to the writer. What waited for an
// earlier message of its key is looked at again: the policy for dead messages
// may have changed since.
func (w *writer) register(c *Consumer) error {
	id, err := w.name(kindConsumer, c.name)
	if err != nil {
		return err
	}
	if _, err := w.conn.exec(qRegister, id); err != nil {
		return w.fail("registering a consumer", err)
	}
	if _, err := w.conn.exec(qUnblock, id, w.now, boolInt(!c.opts.DeadPasses)); err != nil {
		return w.fail("looking at waiting messages", err)
	}
	c.id = id
	w.consumers[id] = c
	if err := w.loadConsumers(); err != nil {
		return w.fail("reading consumers", err)
	}
	return nil
}

// loadConsumers reads what a guest may have switched.
func (w *writer) loadConsumers() error {
	var v [2]driver.Value
	return w.conn.each(qConsumers, v[:], func() error {
		if c := w.consumers[v[0].(int64)]; c != nil {
			c.setPaused(v[1].(int64) != 0)
		}
		return nil
	})
}

// qClock is for a clock that was set back: a due time that lies further in the
// future than its wait is long is counted from now.
var qClock = newQuery(`
	UPDATE inbox_message SET next_at = ?1 + retry_delay
	 WHERE status = 1 AND next_at IS NOT NULL AND next_at > ?1 AND next_at - retry_delay > ?1`)
