package main

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"edge.example/inbox"
	"maragu.dev/goqite"
)

// Cases about what lies in the file.

var storefirstCase = benchCase{
	name: "storefirst", title: "Store first", minutes: 10,
	about: `256 goroutines store messages with ` + "`Receive`" + `, which returns when they are safe; then
` + "`Run`" + ` applies all that wait, a million of them (ten times the messages of a round). Beside
it goqite, whose job this is: ` + "`Send`" + ` by as many goroutines, then one worker that receives,
makes the INSERT and deletes in one transaction. It gets a hundredth.`,
	measure: func(l *lab) {
		n := l.few(10*l.messages, 2*l.messages)
		e := makeEvents(n, "random", payload, 0)
		for round := range l.rounds {
			for _, c := range []struct {
				name string
				n    int
				run  func(l *lab, e *events, n int) (stored, applied time.Duration)
			}{{"edge inbox", n, storeFirst}, {"goqite", max(n/100, 20), storeFirstGoqite}} {
				stored, applied := c.run(l, e, c.n)
				p := l.result.point(c.name, "", 0)
				p.add("stored, msg/s", float64(c.n)/stored.Seconds())
				p.add("applied, msg/s", float64(c.n)/applied.Seconds())
				fmt.Fprintf(l.out, "round %d: %-12s %d stored in %v, applied in %v\n", round+1, c.name, c.n, stored.Round(time.Millisecond), applied.Round(time.Millisecond))
			}
		}
	},
	render: func(r *result) section {
		t := r.bySeries("", []string{"stored, msg/s", "applied, msg/s"}, "stored, msg/s")
		t.columns[len(t.columns)-1] = "storing, edge inbox is"
		t.columns = append(t.columns, "applying, edge inbox is")
		for i, name := range r.series() {
			t.rows[i] = append(t.rows[i], times(ratio(r.at("edge inbox", ""), r.at(name, ""), "applied, msg/s")))
		}
		return section{tables: []table{t}}
	},
}

func storeFirst(l *lab, e *events, n int) (stored, applied time.Duration) {
	dir, remove := l.folder()
	defer remove()
	left, all := n, make(chan struct{})
	obs := &inbox.Observer{Delivered: func(_ string, o inbox.Outcome) {
		if o == inbox.Applied {
			if left--; left == 0 {
				close(all)
			}
		}
	}}
	in := openInbox(l.ctx, dir, inbox.Options{Observer: obs}, inbox.ConsumerOptions{}, nil)
	stored = receiveAll(l, in, e.ids[:n], e.body)
	ctx, cancel := context.WithCancel(l.ctx)
	var running sync.WaitGroup
	start := time.Now()
	running.Go(func() { must(in.ib.Run(ctx)) })
	select {
	case <-all:
	case <-time.After(patience):
		must(fmt.Errorf("not all were applied"))
	}
	applied = time.Since(start)
	cancel()
	running.Wait()
	in.requireOrders(l.ctx, n)
	must(in.ib.Close())
	return stored, applied
}

// receiveAll stores messages by 256 goroutines.
func receiveAll(l *lab, in *insideOut, ids []string, body []byte) time.Duration {
	return byCallers(256, len(ids), func(i int) error {
		o, err := in.c.Receive(l.ctx, inbox.Message{ID: ids[i], Payload: body})
		return outcome(o, err, inbox.Pending)
	})
}

func storeFirstGoqite(l *lab, e *events, n int) (stored, applied time.Duration) {
	db, remove := l.database()
	defer remove()
	get(db.Exec(goqiteSchema))
	order := get(db.Prepare(insertOrder))
	q := goqite.New(goqite.NewOpts{DB: db, Name: "orders", Timeout: time.Hour})
	stored = byCallers(256, n, func(i int) error {
		return q.Send(l.ctx, goqite.Message{Body: append(append([]byte(e.ids[i]), 0), e.body...)})
	})
	start := time.Now()
	for range n {
		must(inTx(db, func(tx *sql.Tx) error { return takeFromGoqite(l.ctx, q, tx, order) }))
	}
	applied = time.Since(start)
	requireOrders(db, n)
	return stored, applied
}

var identitiesCase = benchCase{
	name: "identities", title: "Kept identities", minutes: 60,
	about: `What is applied once must be known for good. The file is filled step by step to 1, 3 and
10 million identities (with tiny payloads and no effect), and at each step the usual
messages are submitted, without a broker. The identities of the hand-written one are filled
and measured alike, and so is the bound, in groups of 2,000 in one table of ids.`,
	measure: func(l *lab) {
		type keeper struct {
			name  string
			grow  func(ids []string)
			apply func(ids []string) time.Duration
		}
		body := makeEvents(1, "random", payload, 0).body
		keep := func(name string) keeper {
			dir, remove := l.folder()
			l.atEnd = append(l.atEnd, remove)
			in := openInbox(l.ctx, dir, inbox.Options{}, inbox.ConsumerOptions{}, func(h inbox.Handler) inbox.Handler {
				return func(ctx context.Context, tx *inbox.Tx, m *inbox.Message) error {
					if len(m.Payload) == 1 {
						return nil
					}
					return h(ctx, tx, m)
				}
			})
			l.atEnd = append(l.atEnd, func() { must(in.ib.Close()) })
			return keeper{name, func(ids []string) { in.submitAll(l.ctx, ids, []byte{0}) },
				func(ids []string) time.Duration { return in.submitAll(l.ctx, ids, body) }}
		}
		byLedger := func(name string, group int) keeper {
			dir, remove := l.folder()
			l.atEnd = append(l.atEnd, remove)
			db := openDB(dir)
			l.atEnd = append(l.atEnd, func() { must(db.Close()) })
			d := newLedger(db, group > 1)
			return keeper{name, func(ids []string) {
				for chunk := range slices.Chunk(ids, 10_000) {
					must(inTx(db, func(tx *sql.Tx) error {
						seen := tx.Stmt(d.seen)
						for _, id := range chunk {
							args := []any{id, []byte{0}, []byte{0}}
							if _, err := seen.Exec(args[:map[bool]int{true: 3, false: 1}[d.keep]]...); err != nil {
								return err
							}
						}
						return nil
					}))
				}
			}, func(ids []string) time.Duration {
				if group == 1 {
					ids = ids[:max(len(ids)/10, 1)]
				}
				start := time.Now()
				for chunk := range slices.Chunk(ids, group) {
					must(d.apply(body, chunk...))
				}
				return time.Since(start) * time.Duration(map[bool]int{true: 10, false: 1}[group == 1])
			}}
		}
		keepers := []keeper{keep("edge inbox, random ids"), keep("edge inbox, ordered ids"), byLedger("hand-written, random ids", 1), byLedger("statements alone, random ids", 2000)}
		rnd, made := rand.New(rand.NewPCG(3, 4)), 0
		fresh := func(n int, kind string) []string {
			ids := make([]string, n)
			for i := range ids {
				ids[i] = makeID(rnd, kind, made)
				made++
			}
			return ids
		}
		kindOf := func(i int) string { return map[bool]string{true: "ulid", false: "random"}[i == 1] }
		kept := 0
		for _, level := range []int{0, 1, 3, 10} {
			target := level * l.few(1_000_000, 200)
			for ; kept < target; kept += min(100_000, target-kept) {
				for i, k := range keepers {
					k.grow(fresh(min(100_000, target-kept), kindOf(i)))
				}
				must(l.ctx.Err())
			}
			for round := range l.rounds {
				for i, k := range keepers {
					took := k.apply(fresh(l.messages, kindOf(i)))
					v := float64(l.messages) / took.Seconds()
					l.result.point(k.name, fmt.Sprintf("%d M", level), float64(level)).add(rate, v)
					fmt.Fprintf(l.out, "%d M round %d: %-30s %.0f msg/s\n", level, round+1, k.name, v)
				}
			}
		}
	},
	render: func(r *result) section {
		return section{
			tables: []table{r.byPlace("Messages a second.", "kept", rate, false)},
			plots: []plot{r.curves(plot{file: "identities", title: "Kept identities",
				xLabel: "identities kept", yLabel: "messages a second", yLog: true}, rate)},
		}
	},
}

// submitAll submits messages without waiting for each.
func (in *insideOut) submitAll(ctx context.Context, ids []string, body []byte) time.Duration {
	handled := newCounter(len(ids))
	start := time.Now()
	for _, id := range ids {
		must(in.c.Submit(ctx, inbox.Message{ID: id, Payload: body}, func(o inbox.Outcome, err error) {
			if err = outcome(o, err, inbox.Applied); err != nil {
				select {
				case handled.done <- err:
				default:
				}
			}
			handled.one()
		}))
	}
	await(handled.done)
	return time.Since(start)
}
