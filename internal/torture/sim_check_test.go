//go:build linux || darwin

package torture

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"edge.example/inbox"
)

// restLimit bounds how long a healed system may take to come to rest.
const restLimit = 60 * time.Second

// look holds what the gateways show just now to what is known of them: what was
// there stays there, as it was, and took effect as often as it was meant to.
func (s *simulation) look() {
	for _, g := range s.gateways {
		if g.ib != nil && !g.failing {
			_, err := g.look()
			s.must(err)
		}
	}
}

// conclude heals everything, lets the system come to rest, and holds every
// gateway to the model.
func (s *simulation) conclude() {
	s.tell("heal")
	s.must(s.hub.start())
	if s.hub.created == 0 {
		s.must(s.hub.create())
	}
	for _, g := range s.gateways {
		g.mend()
		s.must(g.start())
		s.must(g.pause(false))
	}
	s.rest()

	s.tell("every handler succeeds")
	s.healed.Store(true)
	for _, g := range s.gateways {
		_, err := g.ib.Retry(context.Background(), inbox.Selection{Consumer: g.name, All: true})
		s.must(err)
	}
	s.rest()
	for _, g := range s.gateways {
		s.must(g.close())
		s.must(s.closed(g))
	}
}

// rest waits until every gateway is what it must become.
func (s *simulation) rest() {
	for deadline := time.Now().Add(restLimit); ; time.Sleep(5 * time.Millisecond) {
		s.look()
		var err error
		for _, g := range s.gateways {
			if err == nil {
				err = s.resting(g)
			}
		}
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.must(fmt.Errorf("not at rest after %v: %w", restLimit, err))
		}
	}
}

// An entry is a message in a gateway.
type entry struct {
	seq                      int64
	id, hash, status, source string
	attempts, effects        int
	conflicts                map[string]bool
	waits                    bool // for an earlier one of its key
	strange                  int  // failed attempts that were not the handler's fault
}

func (g *gateway) look() (map[string]*entry, error) {
	entries := map[string]*entry{}
	err := g.ib.View(context.Background(), func(ctx context.Context, rx *inbox.Rx) error {
		rows, err := rx.QueryContext(ctx, `
			SELECT i.seq, i.message_id, i.payload_hash, i.status, i.source, i.attempts,
			       (SELECT count(*) FROM effects e WHERE e.seq = i.seq),
			       i.status = 'pending' AND i.next_attempt_at IS NULL,
			       (SELECT count(*) FROM inbox_attempt a WHERE a.message = i.seq
			           AND NOT (a.error LIKE '%the handler''s own%' OR a.error LIKE '%ended the whole transaction%'))
			  FROM inbox i`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			r := &entry{conflicts: map[string]bool{}}
			if err := rows.Scan(&r.seq, &r.id, &r.hash, &r.status, &r.source, &r.attempts, &r.effects, &r.waits, &r.strange); err != nil {
				return err
			}
			if entries[r.id] != nil {
				return fmt.Errorf("%s has %s twice", g.name, r.id)
			}
			entries[r.id] = r
		}
		if err := rows.Err(); err != nil {
			return err
		}
		if rows, err = rx.QueryContext(ctx, `SELECT message_id, refused_hash FROM inbox_conflicts`); err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var id, hash string
			if err := rows.Scan(&id, &hash); err != nil {
				return err
			}
			entries[id].conflicts[hash] = true
		}
		return rows.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", g.name, err)
	}
	for id, f := range g.known {
		if f.hash != "" && entries[id] == nil {
			return nil, fmt.Errorf("%s: %s was there and is lost", g.name, id)
		}
	}
	for id, r := range entries {
		f := g.fate(id)
		times := r.effects
		if r.status == "completed" {
			times--
		}
		switch {
		case f.hash != "" && f.hash != r.hash:
			return nil, fmt.Errorf("%s: %s has another content than before", g.name, id)
		case r.effects < f.effects:
			return nil, fmt.Errorf("%s: %s had %d effects and has %d", g.name, id, f.effects, r.effects)
		case times < f.replays[0] || times > f.replays[1]:
			return nil, fmt.Errorf("%s: %s is %s after %d effects and between %d and %d replays", g.name, id, r.status, r.effects, f.replays[0], f.replays[1])
		case r.status == "discarded" && !f.discarded[1], r.status != "discarded" && f.discarded[0]:
			return nil, fmt.Errorf("%s: %s is %s", g.name, id, r.status)
		case r.strange > 0:
			return nil, fmt.Errorf("%s: %s is charged with %d attempts that are not its fault", g.name, id, r.strange)
		}
		f.hash, f.effects = r.hash, r.effects
	}
	return entries, nil
}

// resting is nil when the gateway is what it must become.
func (s *simulation) resting(g *gateway) error {
	entries, err := g.look()
	s.must(err)
	for id, r := range entries {
		if err := s.became(g, id, r); err != nil {
			return err
		}
	}
	current := map[*publish]bool{}
	for _, p := range s.hub.holds {
		current[p] = true
	}
	for _, p := range s.all {
		if !current[p] && !p.must[g] {
			continue
		}
		r := entries[p.id]
		switch {
		case r == nil:
			return fmt.Errorf("%s has not got %s", g.name, p.id)
		case r.hash != p.hash && !r.conflicts[p.hash]:
			return fmt.Errorf("%s does not know that %s came with other content", g.name, p.id)
		}
	}
	info, err := s.hub.consumer(g)
	s.must(err)
	switch {
	case info == nil:
		return fmt.Errorf("%s has no durable", g.name)
	case info.NumPending > 0 || info.NumAckPending > 0 || info.NumWaiting == 0:
		return fmt.Errorf("%s is not done with the stream: %d pending, %d unacknowledged, %d requests", g.name, info.NumPending, info.NumAckPending, info.NumWaiting)
	}
	return s.accounts(g)
}

// became is nil when the message is done with, as the model says.
func (s *simulation) became(g *gateway, id string, r *entry) error {
	does, sent := s.does[id]
	if !sent {
		return fmt.Errorf("%s: nobody sent %s", g.name, id)
	}
	attempts, dead := attemptsOf(does)
	invalid := message{does: does}.invalid()
	if s.healed.Load() && r.status != "discarded" {
		// Retried ones begin again at 1.
		if r.status != "completed" {
			return fmt.Errorf("%s: %s (%s) is %s, and every handler succeeds", g.name, id, does, r.status)
		}
		return nil
	}
	switch {
	case r.status == "discarded" && (dead || invalid):
		return nil
	case r.waits && r.status == "pending": // that a dead one is before it is an invariant
		return nil
	case invalid && r.status == "dead" && r.attempts == 0:
		return nil
	case invalid && r.status == "completed" && g.fate(id).retried: // the operator's will
		return nil
	case !invalid && dead && r.status == "dead" && r.attempts == attempts:
		return nil
	case !invalid && !dead && r.status == "completed" && r.attempts == attempts:
		return nil
	}
	return fmt.Errorf("%s: %s (%s) is %s after %d attempts", g.name, id, does, r.status, r.attempts)
}

// accounts is nil when the gateway's books agree with the hub.
func (s *simulation) accounts(g *gateway) error {
	ctx, cancel := ctx10()
	defer cancel()
	audits, err := g.ib.Audit(ctx)
	s.must(err)
	current := 0
	for i := range audits {
		a := &audits[i]
		if a.Unexplained != 0 {
			return fmt.Errorf("%s: %d sequences are unexplained: %+v", g.name, a.Unexplained, *a)
		}
		if !a.Current {
			continue
		}
		current++
		if err := a.Compare(ctx, s.hub.js); err != nil {
			return err
		}
		if len(a.Missing) > 0 || len(a.OnBroker) > 0 {
			return fmt.Errorf("%s: sequences are missing: %+v", g.name, *a)
		}
	}
	if current != 1 {
		return fmt.Errorf("%s has %d current accounts", g.name, current)
	}
	return nil
}

// closed holds a file that nobody uses to the lab's invariants.
func (s *simulation) closed(g *gateway) error {
	db, err := sql.Open("sqlite", path(g.dir))
	if err != nil {
		return err
	}
	defer db.Close()
	ctx := context.Background()
	var duplicates int
	if err := db.QueryRowContext(ctx, `SELECT coalesce(sum(duplicates), 0) FROM inbox_consumer`).Scan(&duplicates); err != nil {
		return err
	}
	s.count(func(r *Row) { r.Duplicates += duplicates })
	var text string
	if err := db.QueryRowContext(ctx, `PRAGMA integrity_check`).Scan(&text); err != nil || text != "ok" {
		return errors.Join(fmt.Errorf("%s: integrity_check: %s", g.name, text), err)
	}
	for _, inv := range append(invariants, simInvariants...) {
		switch inv.name {
		case "a completed message took effect once, no other did", "order by key":
			continue // not where messages are replayed: look and handle see to that
		}
		var n int
		if err := db.QueryRowContext(ctx, inv.query).Scan(&n); err != nil || n != 0 {
			return errors.Join(fmt.Errorf("%s: %d times not so: %s", g.name, n, inv.name), err)
		}
	}
	return nil
}

var simInvariants = []struct{ name, query string }{
	{"messages of a key arrived in the order of their stream", `
		SELECT count(*) FROM inbox_message a JOIN inbox_message b ON a.stream = b.stream AND a.key = b.key
		 WHERE a.seq < b.seq AND a.stream_seq > b.stream_seq`},
	{"every row's sequence is accounted for", `
		SELECT count(*) FROM inbox_message m WHERE m.stream IS NOT NULL
		   AND NOT EXISTS (SELECT 1 FROM inbox_range r WHERE r.stream = m.stream AND m.stream_seq BETWEEN r.first_seq AND r.last_seq)`},
	{"ranges neither touch nor overlap", `
		SELECT count(*) FROM inbox_range a JOIN inbox_range b ON a.stream = b.stream AND a.first_seq < b.first_seq AND b.first_seq <= a.last_seq + 1`},
	{"every duplicate is counted", `
		SELECT count(*) FROM inbox_consumer c
		 WHERE (SELECT coalesce(sum(d.count), 0) FROM inbox_duplicate d) <> c.duplicates
		    OR (SELECT coalesce(sum(x.count), 0) FROM inbox_conflict x) <> c.conflicts`},
}
