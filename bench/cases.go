package main

import (
	"context"
	"fmt"
	"hash/fnv"
	"time"

	"edge.example/inbox"
)

const rate = "msg/s"

// The cases that count messages a second.

var contendersCase = benchCase{
	name: "contenders", title: "From JetStream to a committed effect", minutes: 4,
	about: `Every contender takes the same messages (256 bytes, random ids) from a stream of a
nats-server in the same process, and makes the same INSERT for each, once. The clock
stops when all effects are committed and the broker has all acknowledgements; then the
effects are counted. The last three are bounds, not contenders: the statements alone in
groups of 500 and 2,000 messages without a broker, and the broker without a database.
Slow contenders get a part of the messages. *SQL handler* is the program
` + "`edge-consumer run`" + `, in a process of its own; its clock starts when the first tenth is
acknowledged.`,
	measure: func(l *lab) {
		b := l.broker(false)
		e := makeEvents(l.messages, "random", payload, 0)
		b.fill(e)
		l.sideBySide("", 0, e.n(), []contender{
			ours(b, e, oursOptions{}), sqlHandler(b, e), handwritten(b, e, 10, nil),
			goqiteQueue(b, e), riverQueue(b, e), backliteQueue(b, e),
			bareLoop(l, e, 500, "statements alone, by 500"), bareLoop(l, e, 2000, "statements alone, by 2,000"),
			brokerOnly(b),
		})
	},
	render: func(r *result) section {
		return section{tables: []table{r.bySeries("", []string{rate}, rate)}}
	},
}

var callsCase = benchCase{
	name: "calls", title: "Calls that wait for their commit", minutes: 3,
	about: `Without a broker: goroutines that call ` + "`Process` or `Receive`" + `, each call returning
after its commit, beside as many goroutines that make a transaction of their own for
each message. The more callers, the more of them share a commit.`,
	measure: func(l *lab) {
		for _, callers := range []int{1, 16, 256} {
			n := l.messages * min(callers, 100) / 100
			e := makeEvents(max(n, 20), "random", payload, 0)
			call := func(name string, want inbox.Outcome, call func(*inbox.Consumer) func(context.Context, inbox.Message) (inbox.Outcome, error)) contender {
				return contender{name: name, run: func(n int) time.Duration {
					dir, remove := l.folder()
					defer remove()
					in := openInbox(l.ctx, dir, inbox.Options{}, inbox.ConsumerOptions{}, nil)
					fn := call(in.c)
					took := byCallers(callers, n, func(i int) error {
						o, err := fn(l.ctx, inbox.Message{ID: e.ids[i], Payload: e.body})
						return outcome(o, err, want)
					})
					if want == inbox.Applied {
						in.requireOrders(l.ctx, n)
					}
					must(in.ib.Close())
					return took
				}}
			}
			l.sideBySide(fmt.Sprint(callers), float64(callers), e.n(), []contender{
				call("Process", inbox.Applied, func(c *inbox.Consumer) func(context.Context, inbox.Message) (inbox.Outcome, error) { return c.Process }),
				call("Receive", inbox.Pending, func(c *inbox.Consumer) func(context.Context, inbox.Message) (inbox.Outcome, error) { return c.Receive }),
				{name: "transaction a message", part: max(1, callers/16), run: func(n int) time.Duration {
					db, remove := l.database()
					defer remove()
					d := newLedger(db, false)
					took := byCallers(callers, n, func(i int) error { return d.apply(e.body, e.ids[i]) })
					requireOrders(db, n)
					return took
				}},
			})
		}
	},
	render: func(r *result) section {
		return section{
			tables: []table{r.byPlace("Messages a second, by the number of goroutines. *edge inbox is*: `Process` to this.", "goroutines", rate, true)},
			plots: []plot{r.curves(plot{file: "calls", title: "Callers that wait for their commit",
				xLabel: "goroutines", yLabel: "messages a second", xLog: true, yLog: true}, rate)},
		}
	},
}

var fsyncCase = benchCase{
	name: "fsync", title: "Slow disks", minutes: 5,
	about: `As the first case, on disks whose every sync takes 5 ms and 30 ms longer (an SD card):
SQLite's file layer is wrapped, for all contenders alike, in one that sleeps in sync. A
commit is one sync, so a consumer with a transaction a message cannot be faster than
200 and 33 messages a second. A group pays once.`,
	measure: func(l *lab) {
		b := l.broker(false)
		e := makeEvents(l.messages, "random", payload, 0)
		b.fill(e)
		defer slowSync(0)
		for _, d := range []time.Duration{0, 5 * time.Millisecond, 30 * time.Millisecond} {
			at, part := "as it is", 10
			if d > 0 {
				at, part = fmt.Sprintf("+%d ms", d.Milliseconds()), 200
			}
			slowSync(d)
			l.sideBySide(at, float64(d.Milliseconds()), e.n(), []contender{
				ours(b, e, oursOptions{}), handwritten(b, e, part, nil),
				bareLoop(l, e, 500, "statements alone, by 500"), bareLoop(l, e, 2000, "statements alone, by 2,000"),
			})
		}
	},
	render: func(r *result) section {
		return section{
			tables: []table{r.byPlace("Messages a second.", "a sync takes", rate, true)},
			plots: []plot{r.curves(plot{file: "fsync", title: "Slow disks",
				xLabel: "a sync takes longer by", yLabel: "messages a second", yLog: true}, rate)},
		}
	},
}

// usual are the three that the smaller cases compare.
func usual(b *broker, e *events) []contender {
	return []contender{
		ours(b, e, oursOptions{}), handwritten(b, e, 10, nil), bareLoop(b.l, e, 2000, "statements alone, by 2,000"),
	}
}

var payloadsCase = benchCase{
	name: "payloads", title: "Sizes of payloads", minutes: 6,
	about: `As the first case, random ids, at most 256 MB a round.`,
	measure: func(l *lab) {
		b := l.broker(false)
		for _, size := range []int{128, 1 << 10, 16 << 10, 256 << 10} {
			e := makeEvents(min(l.messages, 256<<20/size), "random", size, 0)
			b.fill(e)
			at := fmt.Sprintf("%d KB", size>>10)
			if size < 1<<10 {
				at = fmt.Sprintf("%d B", size)
			}
			l.sideBySide(at, float64(size), e.n(), usual(b, e))
		}
	},
	render: func(r *result) section {
		return section{
			tables: []table{r.byPlace("Messages a second.", "payload", rate, true)},
			plots: []plot{r.curves(plot{file: "payloads", title: "Sizes of payloads",
				xLabel: "payload", yLabel: "messages a second", xLog: true, yLog: true}, rate)},
		}
	},
}

var idsCase = benchCase{
	name: "ids", title: "Kinds of ids", minutes: 3,
	about: `As the first case: random ids (UUIDv4, the worst order for an index), ids ordered by
time (ULID), sequential ones.`,
	measure: func(l *lab) {
		b := l.broker(false)
		for i, kind := range []string{"random", "ulid", "sequential"} {
			e := makeEvents(l.messages, kind, payload, 0)
			b.fill(e)
			l.sideBySide(kind, float64(i), e.n(), usual(b, e))
		}
	},
	render: func(r *result) section {
		return section{tables: []table{r.byPlace("Messages a second.", "ids", rate, true)}}
	},
}

var duplicatesCase = benchCase{
	name: "duplicates", title: "Duplicates", minutes: 4,
	about: `As the first case, with random ids, of which a part repeats earlier ones. The inbox
also counts each duplicate and when it came last, and compares its content; the others
only skip it.`,
	measure: func(l *lab) {
		b := l.broker(false)
		for _, percent := range []int{0, 10, 90} {
			e := makeEvents(l.messages, "random", payload, float64(percent)/100)
			b.fill(e)
			l.sideBySide(fmt.Sprintf("%d %%", percent), float64(percent), e.n(), usual(b, e))
		}
	},
	render: func(r *result) section {
		return section{
			tables: []table{r.byPlace("Messages a second.", "duplicates", rate, true)},
			plots: []plot{r.curves(plot{file: "duplicates", title: "Duplicates",
				xLabel: "deliveries that are duplicates", yLabel: "messages a second"}, rate)},
		}
	},
}

var failuresCase = benchCase{
	name: "failures", title: "Failing handlers, order by key", minutes: 5,
	about: `Handlers that fail at the first attempt at a part of the messages, which come again
after 100 ms: by the inbox's poller, or by the broker (` + "`NakWithDelay`" + `) for the hand-written
one. And messages with an ordering key: ten thousand keys, one key for all. (The
hand-written one keeps order by being serial, and loses it at the first failure.)`,
	measure: func(l *lab) {
		b := l.broker(false)
		for i, percent := range []uint32{1, 50} {
			e := makeEvents(max(l.messages/2, 20), "random", payload, 0)
			b.fill(e)
			fails := func(id string) bool {
				h := fnv.New32a()
				h.Write([]byte(id))
				return h.Sum32()%100 < percent
			}
			o := oursOptions{fails: fails}
			o.consume.Retry = inbox.RetryPolicy{Initial: retryAfter, Jitter: -1}
			l.sideBySide(fmt.Sprintf("%d %% fail once", percent), float64(i), e.n(), []contender{ours(b, e, o), handwritten(b, e, 1, fails)})
		}
		for i, keys := range []int{10_000, 1} {
			e := makeEvents(l.messages, "random", payload, 0)
			e.subjects = make([]string, e.n())
			for j := range e.subjects {
				e.subjects[j] = fmt.Sprintf("bench.%d", j*7919%keys)
			}
			b.fill(e)
			o := oursOptions{}
			o.sub.Key = func(m *inbox.Message) (string, error) { return m.Subject, nil }
			at := map[int]string{10_000: "10,000 keys", 1: "one key"}[keys]
			l.sideBySide(at, float64(2+i), e.n(), []contender{ours(b, e, o), handwritten(b, e, 10, nil)})
		}
	},
	render: func(r *result) section {
		return section{tables: []table{r.byPlace("Messages a second.", "", rate, true)}}
	},
}
