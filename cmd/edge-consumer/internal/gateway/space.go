package gateway

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"edge.example/inbox/cmd/edge-consumer/internal/config"
)

// spaceEvery is how often the space is looked at.
const spaceEvery = 5 * time.Second

// watchSpace shuts the gate while there is too little space: what is not pulled
// is safe on the broker, and the rest of the machine needs a disk too.
func (g *Gateway) watchSpace(ctx context.Context) {
	t := time.NewTicker(spaceEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			g.lookAtSpace(&g.config().Database)
		}
	}
}

func (g *Gateway) lookAtSpace(db *config.Database) {
	was, reason := g.space.reason(), g.tooLittle(db)
	g.space.set(reason)
	switch {
	case was == nil && reason != nil:
		g.log.Error("consuming stopped; messages wait on the broker", "error", reason)
	case was != nil && reason == nil:
		g.log.Info("there is space again; consuming")
	}
}

// tooLittle says what is short. To begin again a little more is needed than to
// go on, so that it does not stop and begin all the time.
func (g *Gateway) tooLittle(db *config.Database) error {
	slack := uint64(0)
	if g.space.reason() != nil {
		slack = 1
	}
	if db.MinFree != nil && *db.MinFree > 0 {
		free, err := DiskFree(g.dir())
		if limit := uint64(*db.MinFree); err == nil && free < limit+slack*limit/10 {
			return fmt.Errorf("the disk of %s has %v left, database.min_free is %v", g.ib.Path(), config.Size(free), *db.MinFree)
		}
	}
	if db.MaxSize > 0 {
		size := fileSize(g.ib.Path()) + fileSize(g.ib.Path()+"-wal")
		if limit := int64(db.MaxSize); size > limit-int64(slack)*limit/10 {
			return fmt.Errorf("the database %s has %v, database.max_size is %v", g.ib.Path(), config.Size(size), db.MaxSize)
		}
	}
	return nil
}

func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// A gate is open, or shut for a reason.
type gate struct {
	mu      sync.Mutex
	why     error
	changed chan struct{} // closed, and replaced, when it opens or shuts
}

func newGate() *gate { return &gate{changed: make(chan struct{})} }

func (g *gate) reason() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.why
}

func (g *gate) look() (changed <-chan struct{}, why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed, g.why
}

func (g *gate) set(why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if (g.why == nil) != (why == nil) {
		close(g.changed)
		g.changed = make(chan struct{})
	}
	g.why = why
}

// wait waits until the gate is open; false: ctx ended first.
func (g *gate) wait(ctx context.Context) bool {
	for {
		changed, why := g.look()
		if ctx.Err() != nil {
			return false
		}
		if why == nil {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// while runs fn with a context that ends when the gate is shut. Then its error
// is nil.
func (g *gate) while(ctx context.Context, fn func(context.Context) error) error {
	changed, why := g.look()
	if why != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-changed:
			cancel()
		case <-ctx.Done():
		}
	}()
	return fn(ctx)
}
