package inbox

// The numbers that stand for names which repeat (consumers, sources, types,
// streams), and those of messages in their order of arrival.

import (
	"database/sql/driver"
)

type nameKey struct {
	kind int64
	name string
}

// maxNames bounds the names remembered; all are forgotten when there are more.
const maxNames = 10_000

var (
	qFindName = newQuery(`SELECT id FROM inbox_name WHERE kind = ?1 AND name = ?2`)
	qAddName  = newQuery(`INSERT INTO inbox_name (kind, name) VALUES (?1, ?2)`)
	qLastRow  = newQuery(`SELECT last_insert_rowid()`)
	// A segment with a filter takes no more messages, even if somebody deletes
	// the last of it. (Segments from 2^27 on would hold numbers from maxSeq on: damage.)
	qMaxSeq = newQuery(`
		SELECT max((SELECT coalesce(max(seq), 0) FROM inbox_message),
		           (SELECT coalesce(max(segment) + 1, 0) * 8192 - 1 FROM inbox_filter
		             WHERE segment BETWEEN 0 AND 134217727))`)
)

// name is the number of a name, given on first use.
func (w *writer) name(kind int64, name string) (int64, error) {
	k := nameKey{kind, name}
	if id, ok := w.names[k]; ok {
		return id, nil
	}
	if len(w.names) > maxNames {
		clear(w.names)
	}
	var v [1]driver.Value
	found, err := w.conn.queryRow(qFindName, v[:], kind, name)
	if err == nil && !found {
		if _, err = w.conn.exec(qAddName, kind, name); err == nil {
			_, err = w.conn.queryRow(qLastRow, v[:])
		}
	}
	if err != nil {
		return 0, w.fail("naming "+name, err)
	}
	id := v[0].(int64)
	w.names[k] = id
	return id, nil
}

// seq is the next arrival number. It is used up when its row is written.
func (w *writer) seq() (int64, error) {
	if w.nextSeq == 0 {
		var v [1]driver.Value
		if _, err := w.conn.queryRow(qMaxSeq, v[:]); err != nil {
			return 0, w.fail("reading the last sequence", err)
		}
		w.nextSeq = v[0].(int64) + 1
	}
	return w.nextSeq, nil
}
