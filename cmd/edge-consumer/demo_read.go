package main

import (
	"context"
	"slices"

	"edge.example/inbox"
)

// What the proof reads from the file: the two business tables, and the views
// that are the inbox's contract.

// readEvents counts the business rows of each message.
func (p *proof) readEvents(ctx context.Context, rx *inbox.Rx, ev *evidence) error {
	rows, err := rx.QueryContext(ctx, `SELECT source, id FROM events`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id identity
		if err := rows.Scan(&id.source, &id.id); err != nil {
			return err
		}
		p.BusinessRows++
		if s := ev.messageOf[id]; s == nil || !s.good {
			p.problemf("the business table has a row for %s, which is no good event of the stream", id.id)
		} else {
			s.rows++
		}
	}
	return rows.Err()
}

// readInbox reads what the inbox says of each message.
func (p *proof) readInbox(ctx context.Context, rx *inbox.Rx, ev *evidence) error {
	rows, err := rx.QueryContext(ctx, `
		SELECT source, message_id, status, payload_hash FROM inbox WHERE consumer = ?1`, demoConsumer)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id identity
		var status, content string
		if err := rows.Scan(&id.source, &id.id, &status, &content); err != nil {
			return err
		}
		s := ev.messageOf[id]
		if s == nil {
			p.problemf("the inbox has message %s, which is not in the stream", id.id)
			continue
		}
		if content != s.content.String() {
			p.problemf("the inbox has message %s with a content that is not the first of the stream", id.id)
		}
		switch status {
		case "completed":
			p.Applied++
		case "dead":
			p.Dead++
			s.dead = true
		default:
			p.problemf("message %s is still %s", id.id, status)
		}
	}
	return rows.Err()
}

// readConflicts reads the contents that were refused.
func (p *proof) readConflicts(ctx context.Context, rx *inbox.Rx, ev *evidence) error {
	rows, err := rx.QueryContext(ctx, `
		SELECT source, message_id, refused_hash FROM inbox_conflicts WHERE consumer = ?1`, demoConsumer)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id identity
		var refused string
		if err := rows.Scan(&id.source, &id.id, &refused); err != nil {
			return err
		}
		p.Conflicts++
		s := ev.messageOf[id]
		if s == nil || !slices.ContainsFunc(s.others, func(h hash) bool { return h.String() == refused }) {
			p.problemf("the conflict of message %s is not in the stream", id.id)
		}
	}
	return rows.Err()
}

// readRepositories compares the sums of each repository with those that the
// stream comes to.
func (p *proof) readRepositories(ctx context.Context, rx *inbox.Rx, ev *evidence) error {
	rows, err := rx.QueryContext(ctx, `SELECT name, events, issues_open FROM repositories`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var have tally
		if err := rows.Scan(&name, &have.events, &have.issuesOpen); err != nil {
			return err
		}
		p.compareRepository(name, have, ev.repositories[name])
		delete(ev.repositories, name)
	}
	for name, want := range ev.repositories {
		p.compareRepository(name, tally{}, want)
	}
	return rows.Err()
}

func (p *proof) compareRepository(name string, have, want tally) {
	if have != want {
		p.problemf("repository %s counts %s events and %s open issues, the stream comes to %s and %s", name,
			comma(have.events), comma(have.issuesOpen), comma(want.events), comma(want.issuesOpen))
	}
	p.Lost += max(want.events-have.events, 0)
	p.DoubleApplied += max(have.events-want.events, 0)
}
