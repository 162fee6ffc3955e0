//go:build linux || darwin

package inbox

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func init() { helpers["file-size-limit"] = fileSizeLimit }

// TestWriter_CommitFails makes COMMIT itself fail, by a limit on the size of
// files: the outcome is unknown, nobody may acknowledge, and the identity
// decides when the message comes again. It runs in a process of its own, whose
// limit it is.
func TestWriter_CommitFails(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	path := filepath.Join(t.TempDir(), "inbox.db")
	cmd.Env = append(os.Environ(), "INBOX_TEST_HELPER=file-size-limit", "INBOX_TEST_PATH="+path)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Run(), out.String())
	assert.Contains(t, out.String(), "commit failed: true")
	l := &lab{t: t, path: path}
	l.check()
}

func fileSizeLimit() {
	signal.Ignore(syscall.SIGXFSZ)
	must := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	var alerted alerts
	ib, err := Open(ctxBG, os.Getenv("INBOX_TEST_PATH"), &Options{Logger: slog.New(slog.DiscardHandler), Observer: &Observer{Alert: alerted.add}})
	must(err)
	must(ib.Update(ctxBG, func(ctx context.Context, tx *Tx) error {
		_, err := tx.ExecContext(ctx, `CREATE TABLE effects (n INTEGER PRIMARY KEY, seq INTEGER NOT NULL, id TEXT NOT NULL)`)
		return err
	}))
	runs := map[string]int{}
	c, err := ib.Consumer("c", func(ctx context.Context, tx *Tx, m *Message) error {
		runs[m.ID]++
		return apply(ctx, tx, m)
	}, nil)
	must(err)
	limit := func(n uint64) {
		var r syscall.Rlimit
		must(syscall.Getrlimit(syscall.RLIMIT_FSIZE, &r))
		r.Cur = n
		must(syscall.Setrlimit(syscall.RLIMIT_FSIZE, &r))
	}
	var r syscall.Rlimit
	must(syscall.Getrlimit(syscall.RLIMIT_FSIZE, &r))
	limit(200_000)
	failed, unknown := -1, false
	for i := range 1000 {
		m := Message{ID: fmt.Sprint(i), Payload: make([]byte, 2000)}
		if _, err := c.Process(ctxBG, m); err != nil {
			failed = i
			unknown = isStorage(err) && bytes.Contains([]byte(err.Error()), []byte(ErrOutcomeUnknown.Error()))
			break
		}
	}
	limit(r.Max)
	m := Message{ID: fmt.Sprint(failed), Payload: make([]byte, 2000)}
	o, err := c.Process(ctxBG, m)
	must(err)
	if o != Applied && o != Duplicate {
		must(fmt.Errorf("outcome %v", o))
	}
	_, err = c.Process(ctxBG, Message{ID: "more"})
	must(err)
	fmt.Println("commit failed:", failed > 0 && unknown && alerted.count(AlertStorage) > 0, failed, o)
	must(ib.Close())
}
