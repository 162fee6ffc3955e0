package gateway

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"edge.example/inbox/cmd/edge-consumer/internal/config"
)

// Reload goes on with another configuration. When anything in it is wrong,
// nothing changes. Otherwise changes says what is another now, and later what
// becomes so at the next start only.
func (g *Gateway) Reload(ctx context.Context, next *config.Config) (changes, later []string, err error) {
	g.reloading.Lock()
	defer g.reloading.Unlock()
	migrations, err := readMigrations(next.Migrations)
	if err != nil {
		return nil, nil, next.At("$.migrations", err)
	}
	applied, err := migrate(ctx, g.ib, migrations)
	if err != nil {
		return nil, nil, next.At("$.migrations", err)
	}
	for _, name := range applied {
		changes = append(changes, "migration "+name+" was applied")
	}
	works, err := prepareAll(ctx, g.ib, next)
	if err != nil {
		return changes, nil, err
	}
	was := g.config()
	g.warnOfRenamed(ctx, next)
	old := map[string]*config.Consumer{}
	for i := range was.Consumers {
		old[was.Consumers[i].Name] = &was.Consumers[i]
	}
	var restart []config.Consumer
	var stop []string
	g.mu.Lock()
	for i := range next.Consumers {
		k := &next.Consumers[i]
		before := old[k.Name]
		delete(old, k.Name)
		switch {
		case g.consumers[k.Name] == nil:
			if err := g.register(k, works[i]); err != nil {
				g.mu.Unlock()
				return changes, later, next.At(fmt.Sprintf("$.consumers[%d]", i), err)
			}
			changes = append(changes, "consumer "+k.Name+" is new")
			restart = append(restart, *k)
			continue
		case before == nil:
			changes = append(changes, "consumer "+k.Name+" consumes again")
			restart = append(restart, *k)
		case !reflect.DeepEqual(pulling(before), pulling(k)):
			changes = append(changes, "consumer "+k.Name+" subscribes in another way")
			stop = append(stop, k.Name)
			restart = append(restart, *k)
		}
		if before != nil {
			if h, _ := was.HandlerOf(slices.IndexFunc(was.Consumers, func(c config.Consumer) bool { return c.Name == k.Name })); changedWork(&h, next, i, before, k) {
				changes = append(changes, "consumer "+k.Name+" has another handler or schema")
			}
			if !reflect.DeepEqual(consumerOptions(before), consumerOptions(k)) {
				later = append(later, "consumer "+k.Name+": retry, dead_passes, drop_payload, canonical_json, conflicts")
			}
		}
		g.consumers[k.Name].work.Store(works[i])
	}
	for _, name := range slices.Sorted(maps.Keys(old)) {
		changes = append(changes, "consumer "+name+" is gone: no more messages are taken, what waits is still retried until the next start")
		stop = append(stop, name)
	}
	g.cfg = next
	r := g.runs
	var stops []func()
	if r != nil {
		for _, name := range stop {
			if s := r.subs[name]; s != nil {
				stops = append(stops, s)
				delete(r.subs, name)
			}
		}
	}
	g.mu.Unlock()
	for _, s := range stops {
		s() // drains
	}
	g.lookAtSpace(&next.Database)
	g.mu.Lock()
	if g.runs != nil {
		for _, k := range restart {
			g.start(g.runs, k)
		}
	}
	g.mu.Unlock()
	return changes, append(later, was.Fixed(next)...), nil
}

func (g *Gateway) config() *config.Config {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cfg
}

// pulling is what of a consumer's configuration its subscription depends on.
func pulling(k *config.Consumer) config.Consumer {
	p := *k
	p.Schema, p.Retry, p.DeadPasses, p.DropPayload, p.CanonicalJSON, p.Conflicts = "", config.Retry{}, false, false, false, ""
	p.Handler, p.SQL, p.PermanentIf = "", nil, nil
	return p
}

func changedWork(was *config.Handler, next *config.Config, i int, before, k *config.Consumer) bool {
	h, _ := next.HandlerOf(i)
	return before.Schema != k.Schema || !reflect.DeepEqual(*was, h)
}
