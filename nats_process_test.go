package inbox

// The end of a subscriber: a clean one, by a signal, by kill -9.

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Shutdown in the middle of the traffic: what was committed is acknowledged.
func TestSubscribe_Shutdown(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, func(o *Options) { o.MaxGroup = 50 })
	const n = 1500
	c, release := l.slowConsumer(400)
	l.publishN(1, n)
	ctx, cancel := context.WithCancel(ctxBG)
	done := make(chan error, 1)
	_, js := l.srv.Connect(clientOptions()...)
	go func() { done <- c.Subscribe(ctx, js, evStream, &SubscribeOptions{Prefetch: 500}) }()
	l.eventually(func() bool { return l.effects("") >= 300 }, "in the middle")
	cancel()
	release()
	require.NoError(t, <-done)
	was := l.effects("")
	require.Less(t, was, n, "in the middle")
	l.eventually(func() bool { return l.info("c").AckFloor.Stream == uint64(was) }, "everything committed is acknowledged")
	l.close()
	l.open()
	c = l.consumer("c", nil, nil)
	l.subscribe(c, nil) // with an AckWait of half a minute
	l.applied(n)
	l.once(1, n)
	l.settled("c")
	assert.Zero(t, l.stats("c").Duplicates, "nothing that was applied came again")
	l.accounted(n)
}

// What had come when the subscription ends is taken, also what the writer's
// queue had no room for.
func TestSubscribe_ShutdownTakesWhatCame(t *testing.T) {
	t.Parallel()
	l := newBrokerLab(t, func(o *Options) { o.QueueLength = 10 })
	c, release := l.slowConsumer(1)
	const size = 8 << 10
	for i := range 100 {
		l.publish(event("n", fmt.Sprint(i), strings.Repeat("x", size)))
	}
	ctx, cancel := context.WithCancel(ctxBG)
	done := make(chan error, 1)
	nc, js := l.srv.Connect(clientOptions()...)
	go func() { done <- c.Subscribe(ctx, js, evStream, &SubscribeOptions{Prefetch: 40}) }()
	l.eventually(func() bool { ci := l.info("c"); return ci != nil && ci.NumAckPending == 40 }, "as many as there is room for")
	l.notPulling("c")
	l.eventually(func() bool { return nc.Stats().InBytes >= 40*size }, "they came: what the broker counts may still be in its own queue")
	assert.LessOrEqual(t, l.ib.w.q.length(), 10)
	cancel()
	release()
	require.NoError(t, <-done)
	assert.Equal(t, 40, l.effects(""))
	l.eventually(func() bool { return l.info("c").AckFloor.Stream == 40 }, "acknowledged")
	l.accounted(40)
}

func init() { helpers["subscribe"] = subscribeHelper }

// subscribeHelper is a process that consumes the stream until SIGTERM comes.
// At the message number INBOX_TEST_AT of its life it says so on standard
// output and does what INBOX_TEST_DO says.
func subscribeHelper() {
	at, _ := strconv.Atoi(os.Getenv("INBOX_TEST_AT"))
	do := os.Getenv("INBOX_TEST_DO")
	ctx, stop := signal.NotifyContext(ctxBG, syscall.SIGTERM)
	defer stop()
	must := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "helper:", err)
			os.Exit(1)
		}
	}
	hung := false // on the writer's goroutine
	opts := &Options{Logger: slog.New(slog.DiscardHandler), CacheSize: 4 << 20, MaxGroup: 50}
	opts.Observer = &Observer{Committed: func(int, time.Duration) {
		if hung {
			fmt.Println("there")
			select {} // committed, not acknowledged
		}
	}}
	ib, err := Open(ctx, os.Getenv("INBOX_TEST_PATH"), opts)
	must(err)
	count := 0
	c, err := ib.Consumer("c", func(hctx context.Context, tx *Tx, m *Message) error {
		if count++; count == at {
			switch do {
			case "terminate":
				fmt.Println("there")
				<-ctx.Done()
			case "kill in the transaction":
				fmt.Println("there")
				select {}
			case "kill after the commit":
				hung = true
			}
		}
		return apply(hctx, tx, m)
	}, nil)
	must(err)
	nc, err := nats.Connect(os.Getenv("INBOX_TEST_URL"), NATSOptions()...)
	must(err)
	js, err := jetstream.New(nc)
	must(err)
	var wg sync.WaitGroup
	wg.Go(func() { must(ib.Run(ctx)) })
	must(c.Subscribe(ctx, js, evStream, helperSubscription()))
	wg.Wait()
	must(ib.Close())
	nc.Close()
}

func helperSubscription() *SubscribeOptions {
	return &SubscribeOptions{Key: KeyFromHeader("Key"), AckWait: 2 * time.Second, Prefetch: 300}
}

// startHelper starts subscribeHelper on the closed file of l, and returns
// when it is in the middle of the traffic.
func (l *brokerLab) startHelper(at int, do string) *exec.Cmd {
	l.t.Helper()
	exe, err := os.Executable()
	require.NoError(l.t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), "INBOX_TEST_HELPER=subscribe", "INBOX_TEST_PATH="+l.path, "INBOX_TEST_URL="+l.srv.URL(),
		"INBOX_TEST_AT="+strconv.Itoa(at), "INBOX_TEST_DO="+do)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(l.t, err)
	require.NoError(l.t, cmd.Start())
	l.t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(l.t, err)
	require.Equal(l.t, "there\n", line)
	return cmd
}

func TestSubscribe_SIGTERM(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("no SIGTERM here")
	}
	const n = 2000
	l := newBrokerLab(t, nil)
	l.close()
	l.publishKeyed(1, n)
	cmd := l.startHelper(500, "terminate")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait(), "it ends by itself, without an error")

	l.open()
	was := l.effects("")
	require.GreaterOrEqual(t, was, 500, "what was taken is committed")
	require.Less(t, was, n, "in the middle")
	assert.EqualValues(t, was, l.info("c").AckFloor.Stream, "and acknowledged")
	l.accounted(uint64(was))
	l.subscribe(l.consumer("c", nil, nil), helperSubscription())
	l.applied(n)
	l.once(1, n)
	l.inOrder()
	l.settled("c")
	assert.Zero(t, l.stats("c").Duplicates, "nothing that was applied came again")
	l.accounted(n)
}

func TestSubscribe_Killed(t *testing.T) {
	t.Parallel()
	const n = 1500
	l := newBrokerLab(t, nil)
	l.close()
	l.publishKeyed(1, n)
	for _, do := range []string{"kill in the transaction", "kill after the commit"} {
		cmd := l.startHelper(400, do)
		require.NoError(t, cmd.Process.Kill())
		require.Error(t, cmd.Wait())
	}
	l.open()
	was := l.effects("")
	require.Greater(t, was, 500)
	require.Less(t, was, n)
	assert.Less(t, l.info("c").AckFloor.Stream, uint64(was), "the last commit was not acknowledged")
	l.audit()
	l.subscribe(l.consumer("c", nil, nil), helperSubscription())
	l.applied(n)
	l.once(1, n)
	l.inOrder()
	l.settled("c")
	l.accounted(n)
	assert.Zero(t, l.alerts.count(AlertMissing))
}
