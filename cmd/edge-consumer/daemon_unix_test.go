//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"edge.example/inbox/internal/natstest"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"
)

// TestDaemon shows the daemon, and the commands beside it, as an operator sees
// them: a real nats-server is in the test's process, a real edge-consumer in
// one of its own.
func TestDaemon(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/daemon/*.txtar")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			b := &brokerInTest{Server: natstest.New(t, nil)}
			testscript.Run(t, testscript.Params{
				Files:               []string{file},
				RequireExplicitExec: true,
				Setup: func(e *testscript.Env) error {
					b.Start()
					e.Setenv("NATS_URL", b.URL())
					e.Setenv("HOME", e.WorkDir)
					return nil
				},
				Cmds: map[string]func(*testscript.TestScript, bool, []string){
					"exits": exits, "broker": b.control, "publish": b.publish, "delivered": b.delivered,
					"stream": b.stream, "consumer": b.consumer, "eventually": eventually, "signal": signalAll,
				},
			})
		})
	}
}

// A brokerInTest is the nats-server of a script.
type brokerInTest struct{ *natstest.Server }

// control is broker stop, broker start, and broker password WORD: from then on
// the user edge must say it.
func (b *brokerInTest) control(ts *testscript.TestScript, neg bool, args []string) {
	switch {
	case !neg && len(args) == 2 && args[0] == "password":
		b.Stop()
		b.Change(func(o *server.Options) { o.Users = []*server.User{{Username: "edge", Password: args[1]}} })
		b.Start()
	case neg || len(args) != 1:
		ts.Fatalf("usage: broker stop|start")
	case args[0] == "stop":
		b.Stop()
	case args[0] == "start":
		b.Start()
	}
}

// client is a connection; the caller closes it.
func (b *brokerInTest) client(ts *testscript.TestScript) *nats.Conn {
	nc, err := nats.Connect(b.URL())
	ts.Check(err)
	return nc
}

// publish SUBJECT ID TEXT publishes one message to a stream; the stream may be
// about to be made.
func (b *brokerInTest) publish(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: publish SUBJECT ID TEXT")
	}
	nc := b.client(ts)
	defer nc.Close()
	js, err := jetstream.New(nc)
	ts.Check(err)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, err = js.Publish(ctx, args[0], []byte(args[2]), jetstream.WithMsgID(args[1]), jetstream.WithRetryAttempts(200), jetstream.WithRetryWait(50*time.Millisecond))
	ts.Check(err)
}

// delivered STREAM DURABLE N waits until the broker has made N deliveries.
func (b *brokerInTest) delivered(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: delivered STREAM DURABLE N")
	}
	want, err := strconv.ParseUint(args[2], 10, 64)
	ts.Check(err)
	nc := b.client(ts)
	defer nc.Close()
	js, err := jetstream.New(nc)
	ts.Check(err)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for {
		c, err := js.Consumer(ctx, args[0], args[1])
		if err == nil && c.CachedInfo().Delivered.Consumer >= want {
			return
		}
		if ctx.Err() != nil {
			ts.Fatalf("never delivered: %v", err)
		}
	}
}

// stream JSON makes a stream, as its configuration in the JetStream API says.
func (b *brokerInTest) stream(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: stream JSON")
	}
	var cfg jetstream.StreamConfig
	ts.Check(json.Unmarshal([]byte(args[0]), &cfg))
	b.ask(ts, "STREAM.CREATE."+cfg.Name, cfg)
}

// consumer STREAM JSON makes a durable consumer.
func (b *brokerInTest) consumer(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: consumer STREAM JSON")
	}
	var cfg struct {
		Name string `json:"durable_name"`
	}
	ts.Check(json.Unmarshal([]byte(args[1]), &cfg))
	b.ask(ts, "CONSUMER.DURABLE.CREATE."+args[0]+"."+cfg.Name, map[string]any{"stream_name": args[0], "config": json.RawMessage(args[1])})
}

// ask asks the JetStream API.
func (b *brokerInTest) ask(ts *testscript.TestScript, subject string, request any) {
	nc := b.client(ts)
	defer nc.Close()
	body, err := json.Marshal(request)
	ts.Check(err)
	m, err := nc.Request("$JS.API."+subject, body, 5*time.Second)
	ts.Check(err)
	var answer struct{ Error *jetstream.APIError }
	ts.Check(json.Unmarshal(m.Data, &answer))
	if answer.Error != nil {
		ts.Fatalf("%s: %v", subject, answer.Error)
	}
}

// eventually REGEXP PROGRAM ARGS... runs a program until its output matches.
func eventually(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: eventually REGEXP PROGRAM ARGS...")
	}
	want, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	var out []byte
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		cmd := exec.Command(args[1], args[2:]...)
		cmd.Dir = ts.Getenv("WORK")
		cmd.Env = []string{"PATH=" + ts.Getenv("PATH"), "WORK=" + ts.Getenv("WORK"), "HOME=" + ts.Getenv("HOME"), "NATS_URL=" + ts.Getenv("NATS_URL"), "TMPDIR=" + ts.Getenv("TMPDIR")}
		var b bytes.Buffer
		cmd.Stdout, cmd.Stderr = &b, &b
		_ = cmd.Run()
		if out = b.Bytes(); want.Match(out) {
			return
		}
	}
	ts.Fatalf("never matched %s; the last output:\n%s", args[0], out)
}

// signalAll HUP|TERM signals the processes in the background.
func signalAll(ts *testscript.TestScript, neg bool, args []string) {
	signals := map[string]syscall.Signal{"HUP": syscall.SIGHUP, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL}
	if neg || len(args) != 1 || signals[args[0]] == 0 {
		ts.Fatalf("usage: signal HUP|TERM|KILL")
	}
	for _, cmd := range ts.BackgroundCmds() {
		ts.Check(cmd.Process.Signal(signals[args[0]]))
	}
}
