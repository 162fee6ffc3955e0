//go:build linux || darwin

package torture

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"edge.example/inbox"
	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
	sqlite3 "modernc.org/sqlite/lib"
)

// TestLinearizable lets many clients act on one message at once: deliver it,
// with one content or another, Retry, Replay and Discard it, and look, while
// the poller tries it again, its handler fails now and then, COMMIT fails, and
// the power is cut. What they saw must be explained by one order of these
// operations, each at a moment between its call and its return.
func TestLinearizable(t *testing.T) {
	result := row(t, "Concurrency")
	seeded(t)
	histories := 60
	if *long {
		histories = 3000
	}
	r := rand.New(rand.NewPCG(*seed, 2))
	operations, unknown := 0, 0
	model := oneMessage.ToModel()
	for i := range histories {
		ops := play(t, r, result)
		operations += len(ops)
		for _, op := range ops {
			if op.Output == nil {
				unknown++
			}
		}
		// Many open ends make a history long to check: one that takes too long
		// says nothing.
		verdict, info := porcupine.CheckOperationsVerbose(model, ops, 30*time.Second)
		if verdict == porcupine.Illegal {
			for _, op := range ops {
				t.Logf("%d: %d … %d  %s", op.ClientId, op.Call, op.Return, oneMessage.DescribeOperation(op.Input, op.Output))
			}
			require.NoError(t, porcupine.VisualizePath(model, info, filepath.Join(t.ArtifactDir(), "history.html"))) // go test -artifacts
			t.Fatalf("-seed %d, history %d: no order of these operations explains them", *seed, i)
		}
		require.Equal(t, porcupine.Ok, verdict, "-seed %d, history %d", *seed, i)
	}
	t.Logf("%d histories, %d operations, %d of them with an unknown end", histories, operations, unknown)
}

// An operation's input is one of these.
type (
	deliver struct{ content string }
	change  struct{ what string } // retry, replay, discard
	see     struct{}
	attempt struct { // by the poller
		n    int
		does string
	}
)

// A view of the message is what see returns, and the state of the model.
type view struct {
	status   string // "": it is not there
	content  string
	effects  int
	attempts int
}

// oneMessage is how the status of one message and its effects may change. An
// output of nil is not known: the operation may have happened or not.
var oneMessage = porcupine.NondeterministicModel{
	Init: func() []any { return []any{view{}} },
	Step: func(state, input, output any) []any {
		var next []any
		for o, v := range steps(state.(view), input) {
			if output == nil || output == o {
				next = append(next, v)
			}
		}
		if output == nil {
			next = append(next, state)
		}
		return next
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%T%v → %v", input, input, output) },
}

// steps are what may become of an operation in a state, by its output.
func steps(v view, input any) map[any]view {
	switch in := input.(type) {
	case see:
		return map[any]view{v: v}
	case deliver:
		switch v.content {
		case "": // new
			return map[any]view{
				inbox.Applied: {"completed", in.content, 1, 1},
				inbox.Pending: {"pending", in.content, 0, 1},
				inbox.Dead:    {"dead", in.content, 0, 1},
			}
		case in.content:
			return map[any]view{inbox.Duplicate: v}
		}
		return map[any]view{inbox.Conflict: v}
	case attempt:
		if v.status != "pending" || v.attempts+1 != in.n {
			return nil
		}
		v.attempts++
		switch {
		case in.does == "":
			v.status = "completed"
			v.effects++
		case in.does == "refuse", v.attempts == maxAttempts:
			v.status = "dead"
		}
		return map[any]view{done{}: v}
	case change:
		c := changes[in.what]
		if v.status != c.from {
			return map[any]view{0: v}
		}
		v.status = c.to
		if c.to == "pending" {
			v.attempts = 0
		}
		return map[any]view{1: v}
	}
	panic("unknown input")
}

// done is the output of an attempt.
type done struct{}

var changes = map[string]struct{ from, to string }{
	"retry":   {"dead", "pending"},
	"replay":  {"completed", "pending"},
	"discard": {"dead", "discarded"},
}

// A history is what happens to one message, in one or two lives of an inbox.
type history struct {
	t     *testing.T
	rand  *rand.Rand // of the test's goroutine
	start time.Time
	dir   string

	mu   sync.Mutex
	dice *rand.Rand // of the handler
	ops  []porcupine.Operation
}

// begin notes the call of an operation; how it ends is not known until end.
func (h *history) begin(client int, input any) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: input, Call: int64(time.Since(h.start)), Return: math.MaxInt64})
	return len(h.ops) - 1
}

func (h *history) end(op int, output any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops[op].Output, h.ops[op].Return = output, int64(time.Since(h.start))
}

// play makes the history: some end well, in some a COMMIT fails, in some the
// power is cut and a second life follows.
func play(t *testing.T, r *rand.Rand, result *Row) []porcupine.Operation {
	h := &history{t: t, rand: r, start: time.Now(), dir: scratch(t), dice: rand.New(rand.NewPCG(r.Uint64(), 0))}
	defer os.RemoveAll(h.dir)
	l := h.open(nil)
	switch r.IntN(4) {
	case 0:
		result.Kills++
		result.Images++
		at := l.clients(1 + r.IntN(12))
		l.cut.Store(true)
		files := cut(l.disk.Log(), Loss(r.IntN(int(Losses))), r)
		l.gone.Store(true)
		at()
		l.end()
		l = h.open(files)
	case 1:
		result.Faults++
		at := l.clients(1 + r.IntN(12))
		l.uncertain.Store(true)
		kind := []OpKind{Sync, Write}[r.IntN(2)]
		var hit atomic.Bool
		l.disk.Fail(func(k OpKind, _ string) int32 {
			if k == kind && !hit.Swap(true) {
				return sqlite3.SQLITE_IOERR
			}
			return 0
		})
		at()
	}
	l.clients(0)()
	l.end()

	var ops []porcupine.Operation
	for _, op := range h.ops {
		if _, looked := op.Input.(see); !looked || op.Output != nil { // else it told nobody anything
			ops = append(ops, op)
		}
	}
	return ops
}

// A lifetime is one opening of the inbox in a history.
type lifetime struct {
	h    *history
	disk *Disk
	ib   *inbox.Inbox
	c    *inbox.Consumer
	stop func() // the poller

	cut       atomic.Bool // what is returned from now on nobody hears
	gone      atomic.Bool // what happens from now on never did
	uncertain atomic.Bool // whether a transaction was committed
	trying    int         // the poller's last attempt; history.mu guards it
}

// client marks the context of a delivery.
type client struct{}

func (h *history) open(files Files) *lifetime {
	t, ctx := h.t, context.Background()
	dir, err := os.MkdirTemp(h.dir, "")
	require.NoError(t, err)
	require.NoError(t, files.Write(dir))
	l := &lifetime{h: h, trying: -1}
	var unwatch func()
	l.disk, unwatch = Watch(dir)
	l.ib, err = inbox.Open(ctx, path(dir), &inbox.Options{CacheSize: 1 << 20, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	require.NoError(t, l.ib.Update(ctx, func(ctx context.Context, tx *inbox.Tx) error {
		_, err := tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS effects (seq INTEGER NOT NULL)`)
		return err
	}))
	l.c, err = l.ib.Consumer("c", l.handle, &inbox.ConsumerOptions{
		Retry: inbox.RetryPolicy{Initial: time.Millisecond, Max: time.Millisecond, MaxAttempts: maxAttempts},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = l.ib.Run(ctx) }()
	l.stop = func() { cancel(); <-ended; unwatch() }
	return l
}

// end ends the poller, looks a last time, and closes.
func (l *lifetime) end() {
	l.stop()
	l.tried(-1)
	l.see(0)
	_ = l.ib.Close()
}

// tried notes that the attempt before is over: the poller makes another.
func (l *lifetime) tried(next int) {
	l.h.mu.Lock()
	last := l.trying
	l.trying = next
	l.h.mu.Unlock()
	if last >= 0 && !l.uncertain.Load() && !l.cut.Load() {
		l.h.end(last, done{})
	}
}

func (l *lifetime) handle(ctx context.Context, tx *inbox.Tx, m *inbox.Message) error {
	h := l.h
	h.mu.Lock()
	does := []string{"", "", "", "fail", "fail", "refuse"}[h.dice.IntN(6)]
	h.mu.Unlock()
	if ctx.Value(client{}) == nil && !l.gone.Load() {
		l.tried(-1)
		l.tried(h.begin(0, attempt{m.Attempt, does}))
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO effects (seq) VALUES (?)`, m.Seq); err != nil {
		return err
	}
	switch does {
	case "fail":
		return errHandler
	case "refuse":
		return inbox.Permanent(errHandler)
	}
	return nil
}

// clients lets some clients act. It returns after so many of their operations
// have ended, or when all have, with what waits for the rest.
func (l *lifetime) clients(after int) (wait func()) {
	var wg sync.WaitGroup
	var ended atomic.Int64
	reached := make(chan struct{})
	for n := range 4 {
		r := rand.New(rand.NewPCG(l.h.rand.Uint64(), 0))
		wg.Go(func() {
			for range 4 + r.IntN(4) {
				if l.cut.Load() {
					return
				}
				l.act(n+1, r)
				if ended.Add(1) == int64(after) {
					close(reached)
				}
			}
		})
	}
	if after > 0 {
		<-reached
	}
	return wg.Wait
}

// act is one operation of a client.
func (l *lifetime) act(n int, r *rand.Rand) {
	ctx := context.WithValue(context.Background(), client{}, true)
	switch k := r.IntN(20); {
	case k < 8:
		content := []string{"a", "a", "a", "b"}[r.IntN(4)]
		op := l.h.begin(n, deliver{content})
		if o, err := l.c.Process(ctx, inbox.Message{ID: "m", Payload: []byte(content)}); err == nil {
			l.heard(op, o)
		}
	case k < 11:
		l.see(n)
	default:
		what := []string{"retry", "replay", "replay", "discard"}[r.IntN(4)]
		if what == "discard" && r.IntN(3) > 0 { // it is the end of all
			what = "retry"
		}
		do := map[string]func(context.Context, inbox.Selection) (int, error){
			"retry": l.ib.Retry, "replay": l.ib.Replay, "discard": l.ib.Discard,
		}[what]
		op := l.h.begin(n, change{what})
		changed, err := do(ctx, inbox.Selection{Consumer: "c", IDs: []string{"m"}})
		if err == nil || errors.Is(err, inbox.ErrNoMatch) {
			l.heard(op, changed)
		}
	}
}

// heard is end, unless the power was cut before the client heard it.
func (l *lifetime) heard(op int, output any) {
	if !l.cut.Load() {
		l.h.end(op, output)
	}
}

// contents by their hash.
var contents = map[string]string{
	fmt.Sprintf("%x", sha256.Sum256([]byte("a"))): "a",
	fmt.Sprintf("%x", sha256.Sum256([]byte("b"))): "b",
}

// see looks at the message.
func (l *lifetime) see(n int) {
	op := l.h.begin(n, see{})
	var v view
	err := l.ib.View(context.Background(), func(ctx context.Context, rx *inbox.Rx) error {
		var hash string
		err := rx.QueryRowContext(ctx, `
			SELECT status, payload_hash, attempts, (SELECT count(*) FROM effects e WHERE e.seq = i.seq)
			  FROM inbox i`).Scan(&v.status, &hash, &v.attempts, &v.effects)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		v.content = contents[hash]
		return err
	})
	if err == nil {
		l.heard(op, v)
	}
}
