package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"edge.example/inbox"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// An open loop: message i is due at i/rate, whatever became of those before it,
// and its latency counts from when it was due to when its effect is committed. A
// contender (or publisher) that stalls is charged for every message that was due
// meanwhile: no coordinated omission. All latencies are kept, so percentiles are
// exact.

// quantiles are those that are recorded of each round.
var quantiles = []struct {
	name string
	q    float64
}{
	{"p50", .5}, {"p75", .75}, {"p90", .9}, {"p95", .95}, {"p99", .99}, {"p99.5", .995}, {"p99.9", .999}, {"max", 1},
}

// A recorder gathers latencies by the due time in each payload. Those due in the
// first second are not counted: it warms up.
type recorder struct {
	start time.Time
	mu    sync.Mutex
	took  []time.Duration
	left  int // messages still to come
	all   chan struct{}
}

const warmUp = time.Second

func newRecorder(n int) *recorder {
	return &recorder{took: make([]time.Duration, 0, n), left: n, all: make(chan struct{})}
}

// due reads when a message was due, since the start.
func due(payload []byte) time.Duration { return time.Duration(binary.BigEndian.Uint64(payload)) }

// committed records messages whose effects are committed now.
func (r *recorder) committed(dues ...time.Duration) {
	now := time.Since(r.start)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range dues {
		if d >= warmUp {
			r.took = append(r.took, now-d)
		}
		if r.left--; r.left == 0 {
			close(r.all)
		}
	}
}

// offer publishes n messages at a rate.
func (r *recorder) offer(b *broker, ids []string, perSecond int) {
	r.start = time.Now()
	for i, id := range ids {
		at := time.Duration(i) * time.Second / time.Duration(perSecond)
		if wait := at - time.Since(r.start); wait > 0 {
			time.Sleep(wait)
		}
		m := nats.NewMsg("bench.order")
		m.Header.Set(jetstream.MsgIDHeader, id)
		m.Data = binary.BigEndian.AppendUint64(make([]byte, 0, payload), uint64(at))[:payload]
		get(b.js.PublishMsgAsync(m))
	}
	<-b.js.PublishAsyncComplete()
}

// quantile of sorted latencies, in milliseconds.
func quantile(sorted []time.Duration, q float64) float64 {
	i := min(int(math.Ceil(q*float64(len(sorted))))-1, len(sorted)-1)
	return float64(sorted[max(i, 0)].Microseconds()) / 1000
}

// A taker consumes until stop is called, and tells r of each commit.
type taker struct {
	name    string
	durable string
	take    func(b *broker, r *recorder, n int) (stop func())
}

var takers = []taker{{"edge inbox", "orders", takeOurs}, {"hand-written", "handwritten", takeByHand}}

func takeOurs(b *broker, r *recorder, n int) (stop func()) {
	ctx, cancel := context.WithCancel(b.l.ctx)
	dir, remove := b.l.folder()
	var group []time.Duration // of the transaction that is open; the writer's goroutine owns it
	obs := &inbox.Observer{Committed: func(int, time.Duration) { r.committed(group...); group = group[:0] }}
	in := openInbox(ctx, dir, inbox.Options{Observer: obs}, inbox.ConsumerOptions{}, func(h inbox.Handler) inbox.Handler {
		return func(ctx context.Context, tx *inbox.Tx, m *inbox.Message) error {
			group = append(group, due(m.Payload))
			return h(ctx, tx, m)
		}
	})
	ended := make(chan error, 1)
	go func() { ended <- in.c.Subscribe(ctx, b.js, stream, nil) }()
	return func() {
		cancel()
		must(<-ended)
		in.requireOrders(b.l.ctx, n)
		must(in.ib.Close())
		b.forget("orders")
		remove()
	}
}

func takeByHand(b *broker, r *recorder, n int) (stop func()) {
	dir, remove := b.l.folder()
	db := openDB(dir)
	d := newLedger(db, false)
	consuming := get(b.consumer("handwritten").Consume(func(m jetstream.Msg) {
		must(d.apply(m.Data(), idOf(m)))
		r.committed(due(m.Data()))
		must(m.Ack())
	}))
	return func() {
		consuming.Stop()
		<-consuming.Closed()
		requireOrders(db, n)
		must(db.Close())
		b.forget("handwritten")
		remove()
	}
}

// awaitPulling waits until a durable consumer is there and asks for messages.
func (b *broker) awaitPulling(durable string) {
	within(time.Minute, "pulling", func() bool {
		c, err := b.js.Consumer(b.l.ctx, stream, durable)
		return err == nil && c.CachedInfo().NumWaiting > 0
	})
}

const inProcess, apart = "server in the same process", "server apart"

var latencyCase = benchCase{
	name: "latency", title: "Latency, end to end", minutes: 25,
	about: `An open loop offers 100, 1,000 and 10,000 messages a second. The latency of a message
counts from when it was due to be published, whatever became of those before it, to when
its effect is committed: publishing, storing in the stream, delivery and commit are in it,
and a stall is charged to all that were due meanwhile. Every latency is kept. Offered are
30 s of messages at 100 a second, 20 s at 1,000 and at least 10 s at 10,000, after a second
to warm up; percentiles are the medians of the rounds. Publisher and consumer share a process, in which the
publisher takes its part of the CPU. A contender that cannot keep up shows its queue.`,
	measure: func(l *lab) {
		for _, place := range []string{inProcess, apart} {
			b := l.broker(place == apart)
			for _, perSecond := range []int{100, 1000, 10_000} {
				seconds := map[int]int{100: 30, 1000: 20, 10_000: 10}[perSecond]
				n := perSecond * (1 + l.few(seconds, 1)) // and the warm-up
				e := makeEvents(n, "random", 1, 0)
				for round := range l.rounds {
					for _, t := range takers {
						b.empty()
						runtime.GC()
						r := newRecorder(n)
						stop := t.take(b, r, n)
						b.awaitPulling(t.durable)
						r.offer(b, e.ids, perSecond)
						select {
						case <-r.all:
						case <-time.After(patience):
							must(fmt.Errorf("%s: not all were committed", t.name))
						}
						over := time.Since(r.start)
						stop()
						slices.Sort(r.took)
						p := l.result.point(t.name, thousands(int64(perSecond))+"/s, "+place, float64(perSecond))
						for _, q := range quantiles {
							p.add(q.name, quantile(r.took, q.q))
						}
						p.add(rate, float64(n)/over.Seconds())
						fmt.Fprintf(l.out, "%s, %d/s, round %d: %-14s p50 %.2f ms  p99 %.2f ms  p99.9 %.2f ms\n", place, perSecond, round+1, t.name,
							quantile(r.took, .5), quantile(r.took, .99), quantile(r.took, .999))
					}
				}
			}
			l.close() // this broker
		}
	},
	render: func(r *result) section {
		t := table{title: "Milliseconds.", columns: []string{"offered", "contender", "p50", "p99", "p99.9", "max", "taken, msg/s"}}
		for _, at := range r.places() {
			for _, name := range r.series() {
				p := r.at(name, at)
				row := []string{at, name}
				for _, f := range []string{"p50", "p99", "p99.9", "max", rate} {
					row = append(row, shown(p.median(f)))
				}
				t.rows = append(t.rows, row)
			}
		}
		sec := section{tables: []table{t}}
		for _, place := range []string{inProcess, apart} {
			pl := plot{file: "latency-" + map[string]string{inProcess: "in-process", apart: "apart"}[place], title: "Latency, " + place,
				xLabel: "percentile", yLabel: "milliseconds", xLog: true, yLog: true,
				ticks: []tick{{2, "50"}, {10, "90"}, {100, "99"}, {1000, "99.9"}}}
			for _, p := range r.Points {
				rated, ok := strings.CutSuffix(p.At, ", "+place)
				if !ok {
					continue
				}
				c := curve{name: p.Series + " " + rated}
				for _, q := range quantiles[:len(quantiles)-1] {
					if v, ok := p.median(q.name); ok {
						c.x, c.y = append(c.x, 1/(1-q.q)), append(c.y, v)
					}
				}
				pl.curves = append(pl.curves, c)
			}
			sec.plots = append(sec.plots, pl)
		}
		return sec
	},
}
