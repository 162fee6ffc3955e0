//go:build linux || darwin

package torture

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// An event is something that befalls the network.
type event struct {
	name string
	do   func(*network)
}

// cuts befall connections: each that is hit counts.
var cuts = []event{
	{"cut", func(n *network) { n.row.Cuts += n.proxy.Cut() }},
	{"reset", func(n *network) { n.row.Cuts += n.proxy.Reset() }},
	{"the broker keeps a connection that the client has given up", func(n *network) { n.row.Cuts += n.proxy.Orphan() }},
	{"half-open: nothing arrives any more, nobody knows", func(n *network) { n.row.Cuts += n.proxy.Silence() }},
	{"what the client sends is lost, then a reset", func(n *network) { n.row.Cuts += n.proxy.Mute(); n.while(200); n.proxy.Reset() }},
	{"what the client sends is lost", func(n *network) { n.row.Cuts += n.proxy.Mute() }},
	{"unreachable", func(n *network) {
		n.proxy.Unreachable(true)
		n.row.Cuts += n.proxy.Cut()
		n.while(200)
		n.proxy.Unreachable(false)
	}},
	{"given-up connections end", func(n *network) { n.row.Cuts += n.proxy.Reap() }},
}

// others befall everything else.
var others = []event{
	{"stall", func(n *network) { release := n.proxy.Stall(); n.while(600); release() }},
	{"slow", func(n *network) { n.proxy.Slow(int64(1 + n.r.IntN(200))); n.while(300); n.proxy.Slow(0) }},
	{"acknowledgements are lost", func(n *network) { n.proxy.LoseAcks(1); n.again(); n.proxy.LoseAcks(0) }},
	{"some acknowledgements are lost", func(n *network) { n.proxy.LoseAcks(int64(2 + n.r.IntN(3))); n.again(); n.proxy.LoseAcks(0) }},
	{"another client takes messages and forgets them", func(n *network) { n.take(1+n.r.IntN(20), false) }},
	{"another client takes messages and gives them back", func(n *network) { n.take(1+n.r.IntN(20), true) }},
	{"broker restarted", func(n *network) { n.restart(nil) }},
	{"broker put back from an old copy", (*network).putBack},
	{"stream purged", func(n *network) {
		n.admin("purge", func(ctx context.Context) error {
			s, err := n.js.Stream(ctx, stream)
			if err == nil {
				err = s.Purge(ctx)
			}
			return err
		})
	}},
	{"stream deleted and made anew", func(n *network) {
		n.admin("delete the stream", func(ctx context.Context) error { return n.js.DeleteStream(ctx, stream) })
		n.while(150)
		n.addStream()
	}},
	{"durable consumer deleted", func(n *network) {
		n.admin("delete the consumer", func(ctx context.Context) error { return n.js.DeleteConsumer(ctx, stream, "c") })
	}},
	{"credentials refused", func(n *network) {
		n.srv.Reload(ways("another", nil))
		n.while(200)
		n.srv.Reload(openWays)
	}},
	{"acknowledging forbidden", func(n *network) {
		n.srv.Reload(ways("secret", &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"$JS.ACK.>"}}}))
		n.again()
		n.srv.Reload(openWays)
	}},
	{"inbox closed and opened", func(n *network) { n.close(); n.open(); n.subscribe() }},
}

// suffer lets everything happen once, in any order, and then more of it. The
// events meet: the next one may come before the network has got over the last.
func (n *network) suffer(more int) {
	var order []int
	all := len(cuts) + len(others)
	for order = n.r.Perm(all); more > 0; more-- {
		order = append(order, n.r.IntN(all))
	}
	n.through()
	n.restart(nil) // there is a copy
	for _, i := range order {
		var e event
		if i < len(cuts) {
			e = cuts[i]
		} else {
			e = others[i-len(cuts)]
			n.row.Faults++
		}
		n.story = append(n.story, fmt.Sprint(time.Now().Format("05.000 "), e.name))
		e.do(n)
		switch n.r.IntN(3) {
		case 0:
			n.through()
		case 1:
			n.while(50)
		}
	}
}

// while lets a fault last for up to so many milliseconds.
func (n *network) while(ms int) { time.Sleep(time.Duration(n.r.IntN(ms)+1) * time.Millisecond) }

// again waits until messages have come again. In the long form it then goes on
// until all that the broker has out for delivery came several times, or it
// takes too long.
func (n *network) again() {
	before := n.duplicates()
	few := before + 200 + n.r.IntN(300)
	n.eventually("messages come again", func() bool { return n.duplicates() >= few })
	if *long {
		many := before + 8*(2*n.opts.Prefetch+1000)
		for end := time.Now().Add(10 * time.Second); n.duplicates() < many && time.Now().Before(end); {
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// admin does something at the broker.
func (n *network) admin(what string, do func(context.Context) error) {
	n.eventually(what, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		err := do(ctx)
		if err != nil {
			n.story = append(n.story, fmt.Sprint("  ", err))
		}
		return err == nil
	})
}

// restart restarts the broker, from the files it had or others.
func (n *network) restart(restore func()) {
	n.srv.Stop()
	if restore != nil {
		restore()
	} else {
		n.copies = append(n.copies, n.srv.SaveFiles())
	}
	n.while(100)
	n.srv.Start()
}

// putBack puts the broker back from an old copy: it gives the sequences since
// to other messages. The inbox looks at the last one that it had to notice, so
// nothing is purged before it has.
func (n *network) putBack() {
	n.restart(n.copies[n.r.IntN(len(n.copies))])
	n.through()
}
