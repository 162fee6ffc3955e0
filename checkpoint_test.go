package inbox

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pages makes the log grow by about n pages.
func (l *lab) pages(n int) {
	l.t.Helper()
	l.update(`INSERT INTO filler (x) VALUES (zeroblob(?))`, n*4096)
}

func (l *lab) size(suffix string) int {
	l.t.Helper()
	info, err := os.Stat(l.path + suffix)
	require.NoError(l.t, err)
	return int(info.Size()) / 4096
}

// The log is copied long before the writer would do it.
func TestCheckpoint_BesideTheWriter(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	l.update(`CREATE TABLE filler (x)`)
	for i := range 3 {
		l.pages(checkpointStep)
		l.eventually(func() bool { return l.size("") > (i+1)*checkpointStep }, "step %d is in the database", i+1)
	}
	assert.Less(t, l.size("-wal"), walAutocheckpoint, "it was not the writer")
}

// What is copied beside the writer does not keep the log from beginning anew.
func TestCheckpoint_LogBeginsAnew(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	l.update(`CREATE TABLE filler (x)`)
	for range 5 * walAutocheckpoint / 400 {
		l.pages(400)
	}
	assert.Less(t, l.size("-wal"), 2*walAutocheckpoint)
	// A reader does, while it reads; afterwards all is as before.
	conn, err := l.ib.readers.Conn(ctxBG)
	require.NoError(t, err)
	tx, err := conn.BeginTx(ctxBG, nil)
	require.NoError(t, err)
	var n int
	require.NoError(t, tx.QueryRow(`SELECT count(*) FROM filler`).Scan(&n))
	for range 2 * walAutocheckpoint / 400 {
		l.pages(400)
	}
	long := l.size("-wal")
	assert.GreaterOrEqual(t, long, 2*walAutocheckpoint)
	require.NoError(t, tx.Rollback())
	require.NoError(t, conn.Close())
	for range 2 * walAutocheckpoint / 400 {
		l.pages(400)
	}
	assert.Less(t, l.size("-wal"), long+walAutocheckpoint)
}
