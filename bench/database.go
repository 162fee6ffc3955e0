package main

import (
	"crypto/sha256"
	"database/sql"
	"net/url"
	"path/filepath"

	_ "modernc.org/sqlite"
)

// The business: one INSERT a message.
const (
	makeOrders  = `CREATE TABLE orders (id TEXT NOT NULL, body BLOB NOT NULL)`
	insertOrder = `INSERT INTO orders (id, body) VALUES (?, ?)`
)

// database is a new one, with the table of the business; remove closes and
// removes it.
func (l *lab) database() (db *sql.DB, remove func()) {
	dir, removeDir := l.folder()
	db = openDB(dir)
	return db, func() { db.Close(); removeDir() }
}

// openDB opens a database as everybody but the inbox has it: the driver and the
// pragmas of the inbox, one connection. (Its Fdatasync, cheaper than fsync, is a
// switch for the whole process, so all have it.)
func openDB(dir string) *sql.DB {
	params := url.Values{
		"_txlock": {"immediate"}, "_journal_mode": {"WAL"}, "_synchronous": {"FULL"}, "_foreign_keys": {"1"},
		"_pragma": {"temp_store(MEMORY)", "cache_size(-12288)", "wal_autocheckpoint(8000)", "journal_size_limit(67108864)", "busy_timeout(10000)"},
	}
	db := get(sql.Open("sqlite", "file:"+filepath.ToSlash(filepath.Join(dir, "bench.db"))+"?"+params.Encode()))
	db.SetMaxOpenConns(1) // one writer; with more, they wait for each other's lock
	get(db.Exec(makeOrders))
	for name, want := range map[string]string{"journal_mode": "wal", "synchronous": "2"} {
		var got string
		must(db.QueryRow("PRAGMA " + name).Scan(&got))
		require(got == want, "%s is %s", name, got)
	}
	return db
}

// requireOrders holds the outcome to what it must be: each message once.
func requireOrders(db interface {
	QueryRow(string, ...any) *sql.Row
}, want int) {
	var rows, ids int
	must(db.QueryRow(`SELECT count(*), count(DISTINCT id) FROM orders`).Scan(&rows, &ids))
	require(rows == want && ids == want, "%d effects of %d messages, not of %d", rows, ids, want)
}

// A ledger is the table by which the hand-written consumer knows what it has
// seen, with two prepared statements.
type ledger struct {
	db          *sql.DB
	seen, order *sql.Stmt
	keep        bool // hash and payload too, as the inbox keeps them for audit and replay
}

func newLedger(db *sql.DB, keep bool) *ledger {
	get(db.Exec(`CREATE TABLE IF NOT EXISTS seen (seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, hash BLOB, body BLOB)`))
	d := &ledger{db: db, keep: keep}
	if keep {
		d.seen = get(db.Prepare(`INSERT INTO seen (id, hash, body) VALUES (?, ?, ?) ON CONFLICT DO NOTHING`))
	} else {
		d.seen = get(db.Prepare(`INSERT INTO seen (id) VALUES (?) ON CONFLICT DO NOTHING`))
	}
	d.order = get(db.Prepare(insertOrder))
	return d
}

// apply applies messages in one transaction, each once.
func (d *ledger) apply(body []byte, ids ...string) error {
	tx, err := d.db.Begin()
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	seen, order := tx.Stmt(d.seen), tx.Stmt(d.order)
	for _, id := range ids {
		var res sql.Result
		if d.keep {
			hash := sha256.Sum256(body)
			res, err = seen.Exec(id, hash[:], body)
		} else {
			res, err = seen.Exec(id)
		}
		if err != nil {
			return err
		}
		if n, _ := res.RowsAffected(); n == 0 {
			continue // seen before
		}
		if _, err := order.Exec(id, body); err != nil {
			return err
		}
	}
	return tx.Commit()
}
