package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"edge.example/inbox"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// What a consumer needs besides time. Each is a process of its own, and so is the
// broker; Linux tells what a process used (proc(5)).

// A consuming process, and what becomes of its file.
type consuming struct {
	pid     int
	mallocs func() float64 // so far; nil when it cannot tell
	stop    func()
}

// consumers are the processes that are measured.
var consumers = []struct {
	name  string
	start func(b *broker, dir string) consuming
}{
	{"edge inbox", func(b *broker, dir string) consuming { return b.consumingChild("ours", dir) }},
	{"edge-consumer, SQL handler", func(b *broker, dir string) consuming {
		d := b.l.program(dir, b.url)
		return consuming{pid: d.cmd.Process.Pid, stop: d.stop}
	}},
	{"hand-written", func(b *broker, dir string) consuming { return b.consumingChild("handwritten", dir) }},
}

func (b *broker) consumingChild(kind, dir string) consuming {
	c := b.l.child("consume", "BENCH_KIND="+kind, "BENCH_DIR="+dir, "BENCH_URL="+b.url)
	require(c.line() == "ready", "a child is not ready")
	return consuming{
		pid: c.cmd.Process.Pid,
		mallocs: func() float64 {
			fmt.Fprintln(c.in)
			var m runtime.MemStats
			must(json.Unmarshal([]byte(c.line()), &m))
			return float64(m.Mallocs)
		},
		stop: c.stop,
	}
}

// consumeChild is main of such a child: it consumes until its input ends, and
// answers each line of it with what it allocated.
func consumeChild() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	nc := get(nats.Connect(os.Getenv("BENCH_URL")))
	js := get(jetstream.New(nc))
	var stop func()
	switch os.Getenv("BENCH_KIND") {
	case "ours":
		in := openInbox(ctx, os.Getenv("BENCH_DIR"), inbox.Options{}, inbox.ConsumerOptions{}, nil)
		ended := make(chan error, 1)
		go func() { ended <- in.c.Subscribe(ctx, js, stream, nil) }()
		stop = func() { cancel(); must(<-ended); must(in.ib.Close()) }
	case "handwritten":
		db := openDB(os.Getenv("BENCH_DIR"))
		d := newLedger(db, false)
		c := get(js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{Durable: "orders", AckPolicy: jetstream.AckExplicitPolicy}))
		consuming := get(c.Consume(func(m jetstream.Msg) {
			must(d.apply(m.Data(), idOf(m)))
			must(m.Ack())
		}))
		stop = func() { consuming.Stop(); <-consuming.Closed(); must(db.Close()) }
	}
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		_ = json.NewEncoder(os.Stdout).Encode(runtime.MemStats{Mallocs: m.Mallocs})
	}
	stop()
	nc.Close()
}

const (
	cpuFigure     = "CPU, µs/message"
	allocFigure   = "allocations/message"
	writtenFigure = "written, bytes/message"
	restFigure    = "RSS at rest, MB"
	steadyFigure  = "RSS at 10,000/s, MB"
	peakFigure    = "RSS at full speed, MB"
	emptyFigure   = "start, ms"
	pendingFigure = "start with a million waiting, ms"
	sizeFigure    = "program, MB"
)

var footprintCase = benchCase{
	name: "footprint", title: "CPU, memory, disk, start", minutes: 15,
	about: `Consumer and broker are processes of their own. *CPU*, *allocations* and *written* (what
the process handed to the file system, WAL and database: proc(5), write_bytes) are those
of a whole run at full speed, payloads of 256 bytes. Memory is the resident set: at rest two
seconds after the start, its peak while 10,000 messages a second are offered for 20 s, its
peak at full speed. *start*: from opening the file to the commit of the first new message,
with an empty file, and with a million messages that wait to be retried while Run is at them.`,
	measure: func(l *lab) {
		b := l.broker(true)
		e := makeEvents(l.messages, "random", payload, 0)
		for round := range l.rounds {
			for _, c := range consumers {
				p := l.result.point(c.name, "", 0)
				l.fullSpeed(b, e, c.start, p)
				l.steady(b, c.start, p)
				fmt.Fprintf(l.out, "round %d: %-28s", round+1, c.name)
				for _, f := range []string{cpuFigure, allocFigure, writtenFigure, restFigure, steadyFigure, peakFigure} {
					if v := p.Figures[f]; len(v) > 0 {
						fmt.Fprintf(l.out, "  %s %.1f", f, v[len(v)-1])
					}
				}
				fmt.Fprintln(l.out)
			}
		}
		p := l.result.point("edge inbox", "", 0)
		l.starts(p)
		l.result.point("edge-consumer, SQL handler", "", 0).add(sizeFigure, float64(get(os.Stat(l.edgeConsumer())).Size())/1e6)
	},
	render: func(r *result) section {
		sec := section{tables: []table{r.bySeries("", []string{cpuFigure, allocFigure, writtenFigure, restFigure, steadyFigure, peakFigure}, "")}}
		t := table{columns: []string{"", "median"}}
		for _, f := range []string{emptyFigure, pendingFigure, sizeFigure} {
			for _, p := range r.Points {
				if v, ok := p.median(f); ok {
					t.rows = append(t.rows, []string{p.Series + ": " + f, shown(v, ok)})
				}
			}
		}
		sec.tables = append(sec.tables, t)
		return sec
	},
}

// fullSpeed measures what a full stream costs.
func (l *lab) fullSpeed(b *broker, e *events, start func(*broker, string) consuming, p *point) {
	dir, remove := l.folder()
	defer remove()
	b.fill(e)
	c := start(b, dir)
	cpu, written := cpuTime(c.pid), writtenBy(c.pid)
	var allocated float64
	if c.mallocs != nil {
		allocated = c.mallocs()
	}
	within(patience, "all", func() bool { time.Sleep(10 * time.Millisecond); return b.ackFloor(l.ctx) >= e.n() })
	n := float64(e.n())
	if c.mallocs != nil {
		p.add(allocFigure, (c.mallocs()-allocated)/n)
	}
	p.add(cpuFigure, float64((cpuTime(c.pid)-cpu).Microseconds())/n)
	p.add(writtenFigure, (writtenBy(c.pid)-written)/n)
	p.add(peakFigure, memory(c.pid, "VmHWM:"))
	c.stop()
}

// steady measures memory at rest, and while 10,000 messages a second are offered.
func (l *lab) steady(b *broker, start func(*broker, string) consuming, p *point) {
	dir, remove := l.folder()
	defer remove()
	const perSecond = 10_000
	b.empty()
	c := start(b, dir)
	b.awaitPulling("orders")
	time.Sleep(time.Duration(l.few(2000, 200)) * time.Millisecond)
	p.add(restFigure, memory(c.pid, "VmRSS:"))
	r := newRecorder(0)
	n := l.few(20*perSecond, perSecond/10)
	r.offer(b, makeEvents(n, "random", 1, 0).ids, perSecond)
	within(patience, "all", func() bool { time.Sleep(10 * time.Millisecond); return b.ackFloor(l.ctx) >= n })
	p.add(steadyFigure, memory(c.pid, "VmHWM:"))
	c.stop()
}

// starts measures how long the first message takes, from opening the file.
func (l *lab) starts(p *point) {
	waiting := l.few(1_000_000, l.messages)
	dir, remove := l.folder()
	defer remove()
	in := openInbox(l.ctx, dir, inbox.Options{}, inbox.ConsumerOptions{}, nil)
	e := makeEvents(waiting, "ulid", payload, 0)
	receiveAll(l, in, e.ids, e.body)
	must(in.ib.Close())
	for round := range l.rounds {
		empty, removeEmpty := l.folder()
		p.add(emptyFigure, l.start(empty, round))
		removeEmpty()
		p.add(pendingFigure, l.start(dir, round))
	}
}

func (l *lab) start(dir string, round int) float64 {
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	begun := time.Now()
	in := openInbox(ctx, dir, inbox.Options{}, inbox.ConsumerOptions{}, nil)
	var running sync.WaitGroup
	running.Go(func() { must(in.ib.Run(ctx)) })
	o, err := in.c.Process(ctx, inbox.Message{ID: fmt.Sprintf("start %d", round), Payload: []byte("new")})
	must(outcome(o, err, inbox.Applied))
	took := time.Since(begun)
	cancel()
	running.Wait()
	must(in.ib.Close())
	return float64(took.Microseconds()) / 1000
}

// memory is a line of /proc/PID/status, in MB.
func memory(pid int, line string) float64 {
	kb := get(strconv.ParseFloat(strings.Fields(field(proc(pid, "status"), strings.TrimSuffix(line, ":"), ":", "0 kB"))[0], 64))
	return kb * 1024 / 1e6
}

// cpuTime is what a process used so far, of user and system time.
func cpuTime(pid int) time.Duration {
	text := string(get(os.ReadFile(proc(pid, "stat"))))
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	ticks := get(strconv.ParseInt(fields[11], 10, 64)) + get(strconv.ParseInt(fields[12], 10, 64))
	return time.Duration(ticks) * time.Second / 100 // sysconf(_SC_CLK_TCK) is 100 on Linux
}

// writtenBy is how many bytes a process caused to be sent to the storage layer.
func writtenBy(pid int) float64 {
	return get(strconv.ParseFloat(field(proc(pid, "io"), "write_bytes", ":", "0"), 64))
}

func proc(pid int, file string) string { return filepath.Join("/proc", fmt.Sprint(pid), file) }
