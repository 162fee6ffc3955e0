//go:build linux || darwin

package torture

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"edge.example/inbox"
	"pgregory.net/rapid"
)

// TestSimulation runs whole systems, one after the other: a hub and some
// gateways, to which everything happens that can, in any order. Then the system
// is healed and brought to rest, and each gateway must have of each message
// what the model says.
//
// What happens follows from -seed; how far the system gets between two actions
// does not. Most of a simulation's time is waiting, so some run side by side.
func TestSimulation(t *testing.T) {
	r := row(t, "Whole-system simulation")
	seeded(t)
	checks, gateways := "2", 3
	if *long {
		checks, gateways = "200", 5
	}
	setFlag(t, "rapid.seed", fmt.Sprint(*seed))
	setFlag(t, "rapid.checks", checks)
	setFlag(t, "rapid.steps", "60")
	var lanes sync.WaitGroup
	defer lanes.Wait()
	for lane := range 4 {
		lanes.Go(func() {
			t.Run(fmt.Sprint(lane), func(t *testing.T) {
				rapid.Check(t, func(rt *rapid.T) {
					for range lane { // with the same seed, each lane goes another way
						rapid.Uint64().Draw(rt, "lane")
					}
					simulate(t, rt, r, gateways)
				})
			})
		})
	}
}

// simulate runs one system.
func simulate(t *testing.T, rt *rapid.T, r *Row, gateways int) {
	s := &simulation{t: rt, row: r, dir: scratch(t), does: map[string]string{}}
	s.rand = rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "rand"), 0))
	defer s.end()
	var err error
	s.hub, err = newHub(t, s.dir)
	s.must(err)
	for i := range rapid.IntRange(2, gateways).Draw(rt, "gateways") {
		g := &gateway{s: s, name: fmt.Sprint("g", i), known: map[string]*fate{}}
		s.gateways = append(s.gateways, g)
		s.must(g.mount(nil))
		s.must(g.start())
	}
	rt.Repeat(s.actions())
	s.conclude()
}

// setFlag sets a flag of rapid's, unless the command line did.
func setFlag(t *testing.T, name, value string) {
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	if given {
		return
	}
	f := flag.Lookup(name)
	old := f.Value.String()
	t.Cleanup(func() { _ = f.Value.Set(old) })
	_ = f.Value.Set(value)
}

// A simulation is one such system.
type simulation struct {
	t    *rapid.T
	row  *Row
	dir  string
	rand *rand.Rand // of what a power cut leaves

	hub      *hub
	gateways []*gateway
	sent     []message // every identity, with its first content
	versions int
	all      []*publish        // every message that the hub ever confirmed
	does     map[string]string // how the handler behaves, by the message's id

	healed atomic.Bool // every handler succeeds

	mu     sync.Mutex
	blamed error
	story  []string
}

// blame is for what goes wrong away from the simulation's goroutine.
func (s *simulation) blame(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.blamed == nil {
		s.blamed = err
	}
}

func (s *simulation) must(err error) {
	s.t.Helper()
	if err == nil {
		s.mu.Lock()
		err = s.blamed
		s.mu.Unlock()
	}
	if err != nil {
		s.t.Fatalf("%v\nafter: %s", err, strings.Join(s.story, "; "))
	}
}

// count counts in the row that the simulations share.
func (s *simulation) count(fn func(*Row)) {
	s.row.Lock()
	defer s.row.Unlock()
	fn(s.row)
}

func (s *simulation) tell(format string, args ...any) {
	s.story = append(s.story, fmt.Sprintf(format, args...))
}

func (s *simulation) end() {
	for _, g := range s.gateways {
		if g.disk != nil {
			g.disk.Fail(nil)
		}
		_ = g.close()
		if g.unwatch != nil {
			g.unwatch()
		}
	}
	if s.hub != nil {
		s.hub.stop()
	}
	os.RemoveAll(s.dir)
}

func (s *simulation) gateway(t *rapid.T) *gateway {
	return s.gateways[rapid.IntRange(0, 4).Draw(t, "gateway")%len(s.gateways)]
}

// actions are what can happen. What they draw does not depend on how far the
// system has got.
func (s *simulation) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"publish a fresh message": func(t *rapid.T) { s.publish(s.fresh(t)) },
		"publish many": func(t *rapid.T) {
			for range rapid.IntRange(2, 50).Draw(t, "n") {
				s.publish(s.fresh(t))
			}
		},
		"publish again":         func(t *rapid.T) { s.publish(s.earlier(t)) },
		"publish other content": func(t *rapid.T) { s.publish(s.other(t)) },
		"publish a mix": func(t *rapid.T) {
			for range rapid.IntRange(2, 10).Draw(t, "n") {
				m := []func(*rapid.T) message{s.fresh, s.earlier, s.other}[rapid.IntRange(0, 2).Draw(t, "kind")]
				s.publish(m(t))
			}
		},
		"kill": func(t *rapid.T) {
			g, loss := s.gateway(t), Loss(rapid.IntRange(0, int(Losses)-1).Draw(t, "loss"))
			again := rapid.Bool().Draw(t, "start")
			s.tell("kill %s, loss %d, start %t", g.name, loss, again)
			if g.ib != nil {
				s.count(func(r *Row) { r.Kills++; r.Images++ })
			}
			s.must(g.kill(loss, s.rand))
			if again {
				s.must(g.start())
			}
		},
		"stop or start": func(t *rapid.T) {
			g := s.gateway(t)
			s.tell("stop or start %s", g.name)
			if g.ib == nil {
				s.must(g.start())
			} else {
				s.must(g.close())
			}
		},
		"restart": func(t *rapid.T) {
			g := s.gateway(t)
			s.tell("restart %s", g.name)
			s.must(g.close())
			s.must(g.start())
		},
		"disk fails": s.diskFails,
		"disk is mended": func(t *rapid.T) {
			g := s.gateway(t)
			s.tell("disk of %s is mended", g.name)
			g.mend()
		},
		"hub restarts": func(t *rapid.T) {
			s.tell("hub restarts")
			s.count(func(r *Row) { r.Cuts++ })
			s.hub.stop()
			s.must(s.hub.start())
		},
		"hub goes or comes": func(t *rapid.T) {
			s.tell("hub goes or comes")
			if !s.hub.up {
				s.must(s.hub.start())
				return
			}
			s.count(func(r *Row) { r.Cuts++ })
			s.hub.stop()
		},
		"hub is saved": func(t *rapid.T) {
			s.tell("hub is saved")
			s.must(s.hub.save())
		},
		"hub is put back": func(t *rapid.T) {
			n := rapid.IntRange(0, 9).Draw(t, "copy")
			if len(s.hub.copies) == 0 {
				return
			}
			n %= len(s.hub.copies)
			s.tell("hub is put back to copy %d", n)
			s.must(s.hub.oblige(s.gateways))
			s.count(func(r *Row) { r.Cuts++ })
			s.must(s.hub.restore(n))
			for _, g := range s.gateways {
				g.bound = false
			}
		},
		"durable is deleted": func(t *rapid.T) {
			if g := s.gateway(t); s.streamThere() {
				s.tell("durable of %s is deleted", g.name)
				s.must(s.hub.oblige(s.gateways))
				s.must(s.hub.forget(g))
			}
		},
		"purge": func(t *rapid.T) {
			keep := rapid.SampledFrom([]int{0, 0, 1, 5}).Draw(t, "keep")
			if !s.streamThere() || !s.allBound() {
				return
			}
			s.tell("purge all but %d", keep)
			s.must(s.hub.oblige(s.gateways))
			s.must(s.hub.purge(keep))
		},
		"stream is deleted": func(t *rapid.T) {
			again := rapid.Bool().Draw(t, "made anew")
			if !s.streamThere() {
				return
			}
			s.tell("stream is deleted, made anew %t", again)
			s.must(s.hub.oblige(s.gateways))
			s.must(s.hub.remove())
			if again {
				s.must(s.hub.create())
			}
		},
		"stream is made": func(t *rapid.T) {
			if s.hub.up && s.hub.created == 0 {
				s.tell("stream is made")
				s.must(s.hub.create())
			}
		},
		"clock": func(t *rapid.T) {
			g := s.gateway(t)
			years := rapid.SampledFrom([]int{10, -10, 0}).Draw(t, "years")
			s.tell("clock of %s: %d years", g.name, years)
			g.clock.Store(int64(years) * 365 * 24 * int64(time.Hour))
		},
		"retry":   func(t *rapid.T) { s.admin(t, "retry") },
		"replay":  func(t *rapid.T) { s.admin(t, "replay") },
		"discard": func(t *rapid.T) { s.admin(t, "discard") },
		"pause or resume": func(t *rapid.T) {
			g, pause := s.gateway(t), rapid.Bool().Draw(t, "pause")
			s.tell("pause %s %t", g.name, pause)
			s.must(g.pause(pause))
		},
		"checkpoint": func(t *rapid.T) {
			g, how := s.gateway(t), rapid.SampledFrom([]string{"PASSIVE", "TRUNCATE"}).Draw(t, "how")
			if g.ib != nil {
				s.tell("checkpoint %s %s", g.name, how)
				s.must(g.checkpoint(how))
			}
		},
		// Nothing relies on how far the system gets meanwhile.
		"time passes":         func(t *rapid.T) { time.Sleep(time.Duration(rapid.IntRange(1, 30).Draw(t, "ms")) * time.Millisecond) },
		"gateways look alive": func(t *rapid.T) { s.look() },
		"":                    func(t *rapid.T) { s.must(nil) },
	}
}

func (s *simulation) streamThere() bool { return s.hub.up && s.hub.created != 0 }

// allBound reports whether every gateway has looked at the hub since it was
// put back. Until then a purge would hide from them that it was: a hole that
// ARCHITECTURE.md admits.
func (s *simulation) allBound() bool {
	all := true
	for _, g := range s.gateways {
		if !g.bound {
			info, err := s.hub.consumer(g)
			s.must(err)
			g.bound = info != nil && info.NumWaiting > 0
		}
		all = all && g.bound
	}
	return all
}

// fresh is a message with a new identity.
func (s *simulation) fresh(t *rapid.T) message {
	m := message{
		id:      fmt.Sprint("m", len(s.sent)),
		key:     rapid.SampledFrom([]string{"", "", "", "k", "l", "m"}).Draw(t, "key"),
		does:    rapid.SampledFrom([]string{"", "", "", "", "", "", "fails once", "fails twice", "panics", "rolls back", "never", "poison", "no key", "no id", "status"}).Draw(t, "does"),
		payload: fmt.Sprint("v", s.versions),
	}
	switch m.does {
	case "no key":
		m.key = "bad"
	case "no id":
		m.id = ""
	case "status":
		m.payload = ""
	}
	s.sent = append(s.sent, m)
	return m
}

// earlier is a message that was sent, as it was.
func (s *simulation) earlier(t *rapid.T) message {
	n := rapid.IntRange(0, 200).Draw(t, "earlier")
	if len(s.sent) == 0 {
		return s.fresh(t)
	}
	return s.sent[n%len(s.sent)]
}

// other is one with another content.
func (s *simulation) other(t *rapid.T) message {
	m := s.earlier(t)
	s.versions++
	m.payload = fmt.Sprint("v", s.versions)
	return m
}

func (s *simulation) publish(m message) {
	if !s.streamThere() {
		return
	}
	s.tell("publish %q %q %q %q", m.id, m.key, m.does, m.payload)
	p, err := s.hub.publish(m)
	s.must(err)
	s.all = append(s.all, p)
	s.does[p.id] = m.does
}

func (s *simulation) diskFails(t *rapid.T) {
	g := s.gateway(t)
	f := faults[rapid.IntRange(0, len(faults)-1).Draw(t, "fault")]
	nth := int64(rapid.IntRange(1, 8).Draw(t, "nth"))
	once := rapid.Bool().Draw(t, "once")
	s.tell("disk of %s: %s %s once %t from the %d.", g.name, f.kind, f.name, once, nth)
	s.count(func(r *Row) { r.Faults++ })
	g.failing = true
	var count atomic.Int64
	g.disk.Fail(func(k OpKind, _ string) int32 {
		if k != f.kind {
			return 0
		}
		if at := count.Add(1); at == nth || at > nth && !once {
			return f.code
		}
		return 0
	})
}

// mend makes the disk work again.
func (g *gateway) mend() {
	g.disk.Fail(nil)
	g.failing = false
}

// admin does what an operator does to one message, as the owner or as a guest.
func (s *simulation) admin(t *rapid.T, what string) {
	g, n := s.gateway(t), rapid.IntRange(0, 200).Draw(t, "which")
	guest := rapid.IntRange(0, 3).Draw(t, "guest") == 0
	sensible := rapid.IntRange(0, 3).Draw(t, "sensible") > 0
	var ids []string
	for _, p := range s.all {
		_, dead := attemptsOf(p.does)
		if !sensible || (what == "replay") != (dead || p.invalid()) {
			ids = append(ids, p.id)
		}
	}
	if len(ids) == 0 || g.ib == nil {
		return
	}
	id := ids[n%len(ids)]
	s.tell("%s %s in %s, guest %t", what, id, g.name, guest)
	ib := g.ib
	if guest {
		opts := &inbox.Options{Guest: true, CacheSize: 1 << 20, Logger: slog.New(slog.DiscardHandler)}
		setClock(opts, func() time.Time { return time.Now().Add(time.Duration(g.clock.Load())) })
		var err error
		if ib, err = inbox.Open(context.Background(), path(g.dir), opts); err != nil {
			if !g.failing {
				s.must(err)
			}
			return
		}
		defer ib.Close()
	}
	do := map[string]func(context.Context, inbox.Selection) (int, error){
		"retry": ib.Retry, "replay": ib.Replay, "discard": ib.Discard,
	}[what]
	done, err := do(context.Background(), inbox.Selection{Consumer: g.name, IDs: []string{id}})
	if errors.Is(err, inbox.ErrNoMatch) {
		return
	}
	certain := err == nil
	if !certain && !g.failing {
		s.must(fmt.Errorf("%s %s in %s: %w", what, id, g.name, err))
	}
	f := g.fate(id)
	switch {
	case what == "retry":
		f.retried = true
	case what == "replay" && certain:
		f.replays[0] += done
		f.replays[1] += done
	case what == "replay":
		f.replays[1]++
	case what == "discard":
		f.discarded[0] = f.discarded[0] || certain && done > 0
		f.discarded[1] = true
	}
}

// pause pauses the consumer, or ends that.
func (g *gateway) pause(on bool) error {
	if g.ib == nil {
		return nil
	}
	do := g.ib.Resume
	if on {
		do = g.ib.Pause
	}
	if err := do(context.Background(), g.name); err != nil && !g.failing {
		return fmt.Errorf("%s: %w", g.name, err)
	}
	return nil
}
