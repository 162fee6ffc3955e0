package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unique"

	"edge.example/inbox"
	"github.com/spf13/cobra"
)

// A change is what retry, discard and replay have in common: they choose
// messages with a status, by id or by conditions, and give them another one.
type change struct {
	verb    string // the command
	from    string // the status that a message must have
	outcome string // what it is afterwards, for people
	asks    bool   // for confirmation always, not only with --all
	payload bool   // runs completed messages: their payload must have been kept
	do      func(*inbox.Inbox, context.Context, inbox.Selection) (int, error)

	db     *database
	filter *filter
	all    bool
	yes    bool
	dryRun bool
	asJSON bool
}

// changeHelp ends the help of the three.
const changeHelp = `

Messages are chosen by id, or by conditions that must all hold, or with --all.
The consumer must be named when the inbox has several. The same id may have
come from several sources: all are meant unless --source says which.

--dry-run shows what would be chosen and changes nothing; with a configuration,
retry and replay run the handler on the first ten of them, show the rows that
would change, and undo it all. The program that
owns the file may run; it notices within a second.

The exit status is 1 if nothing was chosen, or if an id that was named was not
there in the needed status (the others are changed).`

// changeSample is how many of the chosen messages a dry run shows.
const changeSample = 10

func (c *change) command(short, help, example string) *cobra.Command {
	cmd := &cobra.Command{
		Use:     c.verb + " --db FILE [ID...]",
		Short:   short,
		Long:    help + changeHelp,
		Example: example,
		RunE:    action(c.run),
	}
	c.db = databaseFlag(cmd)
	c.filter = filterFlags(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&c.all, "all", false, "all "+c.from+" messages of the consumer")
	flags.BoolVar(&c.yes, "yes", false, "do not ask for confirmation")
	flags.BoolVar(&c.dryRun, "dry-run", false, "show what would be chosen, change nothing")
	flags.BoolVar(&c.asJSON, "json", false, "print one JSON object")
	return cmd
}

// A changeReport is the JSON of retry, discard and replay.
type changeReport struct {
	Action   string `json:"action"`
	Consumer string `json:"consumer"`
	DryRun   bool   `json:"dry_run"`

	Chosen         int          `json:"chosen"`
	Changed        int          `json:"changed"`
	WithoutPayload int          `json:"without_payload"` // replay: not kept, so not chosen
	First          []messageRef `json:"first"`           // of the chosen
	NotChosen      []notChosen  `json:"not_chosen"`      // of the ids that were named
	Rehearsed      []rehearsal  `json:"rehearsed"`       // null: no handler was run

	messages []chosenMessage // in the order of arrival
}

type messageRef struct {
	Source    string `json:"source"`
	MessageID string `json:"message_id"`
}

type notChosen struct {
	MessageID string  `json:"message_id"`
	Status    *string `json:"status"` // null: there is no such message
}

func (c *change) run(ctx context.Context, ids []string, s stdio) error {
	if err := c.check(ids, s); err != nil {
		return err
	}
	ib, err := c.db.open(ctx)
	if err != nil {
		return err
	}
	defer ib.Close()
	paused, err := c.findConsumer(ctx, ib)
	if err != nil {
		return err
	}
	r, err := c.choose(ctx, ib, ids)
	if err != nil {
		return err
	}
	if r.Chosen > 0 && c.dryRun && c.verb != "discard" {
		if err := c.rehearse(ctx, ib, r); err != nil {
			return err
		}
	}
	if r.Chosen > 0 && !c.dryRun {
		if c.confirms() {
			yes, err := confirmed(ctx, s, c.verb+" "+r.count(r.Chosen)+"?")
			if err != nil {
				return err
			}
			if !yes {
				return errors.New("not confirmed, nothing was changed")
			}
		}
		if err := c.apply(ctx, ib, r); err != nil {
			return fmt.Errorf("%s was changed, then: %w", r.count(r.Changed), err)
		}
	}
	if c.asJSON {
		err = writeJSON(s.out, r)
	} else {
		err = c.print(r, s)
	}
	if err != nil {
		return err
	}
	if paused && r.Changed > 0 && c.verb != "discard" {
		fmt.Fprintf(s.err, "Consumer %s is paused: nothing runs before edge-consumer resume.\n", visible(r.Consumer))
	}
	return c.verdict(r)
}

// check holds what the command line says to be one choice.
func (c *change) check(ids []string, s stdio) error {
	f := c.filter
	if err := f.check(time.Now()); err != nil {
		return err
	}
	conditions := f.narrow() || f.source != ""
	switch {
	case slices.Contains(ids, ""):
		return exitf(exitUsage, "an id is empty: leave it out, or say which")
	case len(ids) > 0 && (c.all || f.narrow()):
		return exitf(exitUsage, "%s takes ids, or conditions, or --all: not several of them", c.verb)
	case c.all && conditions:
		return exitf(exitUsage, "--all means all: leave it out, or the conditions")
	case len(ids) == 0 && !c.all && !conditions:
		return exitf(exitUsage, "%s what? Name ids, give conditions, or --all; see edge-consumer %s --help", c.verb, c.verb)
	case c.confirms() && !c.dryRun && !onTerminal(s.in):
		return exitf(exitUsage, "%s asks before it changes anything, and there is no terminal to answer on: pass --yes (or --dry-run, to see what would be chosen)", c.verb)
	}
	return nil
}

func (c *change) confirms() bool { return (c.asks || c.all) && !c.yes }

// findConsumer settles which consumer is meant, and tells whether it is paused.
func (c *change) findConsumer(ctx context.Context, ib *inbox.Inbox) (paused bool, err error) {
	stats, err := ib.Stats(ctx)
	if err != nil {
		return false, err
	}
	if c.filter.consumer == "" {
		names := consumerNames(&stats)
		switch len(names) {
		case 0:
			return false, exitf(exitNoMatch, "nothing to %s: the inbox has no consumer yet", c.verb)
		case 1:
			c.filter.consumer = names[0]
		default:
			return false, exitf(exitUsage, "say which consumer is meant with --consumer; %s", theConsumers(&stats))
		}
	}
	return stats.Consumers[c.filter.consumer].Paused, knownConsumer(&stats, c.filter.consumer)
}

// choose finds the messages. What is confirmed is what is changed: a message
// that gets the status later is not.
func (c *change) choose(ctx context.Context, ib *inbox.Inbox, ids []string) (*changeReport, error) {
	r := &changeReport{
		Action: c.verb, Consumer: c.filter.consumer, DryRun: c.dryRun,
		First: []messageRef{}, NotChosen: []notChosen{},
	}
	err := ib.View(ctx, func(ctx context.Context, rx *inbox.Rx) error {
		if len(ids) == 0 {
			f := *c.filter
			f.statuses = []string{c.from}
			return c.chooseRows(ctx, rx, &f, r, nil)
		}
		// An id named twice is one message.
		ids := slices.Compact(slices.Sorted(slices.Values(ids)))
		for some := range slices.Chunk(ids, maxParameters) {
			f := *c.filter
			f.ids = some
			found := map[string]string{} // id: status
			if err := c.chooseRows(ctx, rx, &f, r, found); err != nil {
				return err
			}
			for _, id := range some {
				switch status, ok := found[id]; {
				case !ok:
					r.NotChosen = append(r.NotChosen, notChosen{id, nil})
				case status != c.from:
					r.NotChosen = append(r.NotChosen, notChosen{id, &status})
				}
			}
		}
		return nil
	})
	return r, err
}

// maxParameters is less than the 32,766 that SQLite takes in a statement.
const maxParameters = 30_000

// chooseRows adds the rows that the filter lets through and that have the
// needed status, and notes in found the status of each id.
func (c *change) chooseRows(ctx context.Context, rx *inbox.Rx, f *filter, r *changeReport, found map[string]string) error {
	condition, args := f.where()
	rows, err := rx.QueryContext(ctx, `
		SELECT seq, source, message_id, coalesce(key, ''), status, payload IS NOT NULL FROM inbox WHERE `+condition+` ORDER BY seq`, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var m chosenMessage
		var status string
		var kept bool
		if err := rows.Scan(&m.seq, &m.source, &m.id, &m.key, &status, &kept); err != nil {
			return err
		}
		if found != nil && found[m.id] != c.from { // of several sources, one that has the needed status
			found[m.id] = status
		}
		switch {
		case status != c.from:
		case c.payload && !kept:
			r.WithoutPayload++
		default:
			r.Chosen++
			// Sources and keys repeat: one copy of each will do.
			m.source, m.key = unique.Make(m.source).Value(), unique.Make(m.key).Value()
			r.messages = append(r.messages, m)
			if len(r.First) < changeSample {
				r.First = append(r.First, messageRef{m.source, m.id})
			}
		}
	}
	return rows.Err()
}

// apply changes what was chosen. A message whose status has changed meanwhile
// is left alone.
func (c *change) apply(ctx context.Context, ib *inbox.Inbox, r *changeReport) error {
	for b := range batches(r.messages) {
		n, err := c.do(ib, ctx, inbox.Selection{Consumer: r.Consumer, Source: b.source, IDs: b.ids})
		r.Changed += n
		if err != nil && !errors.Is(err, inbox.ErrNoMatch) && !errors.Is(err, inbox.ErrNoPayload) {
			return err
		}
	}
	return nil
}

// count is n of the consumer's messages, in words.
func (r *changeReport) count(n int) string {
	return plural(int64(n), "message", "messages") + " of consumer " + r.Consumer
}

func (c *change) print(r *changeReport, s stdio) error {
	p := printer{w: s.out}
	switch {
	case c.dryRun:
		p.printf("Would %s %s.\n", c.verb, visible(r.count(r.Chosen)))
		if r.Chosen > 0 {
			t := newTable(&p, column{name: "ID"}, column{name: "SOURCE"})
			for _, m := range r.First {
				t.row(m.MessageID, m.Source)
			}
			t.flush()
		}
		if more := r.Chosen - len(r.First); more > 0 {
			p.printf("... and %s more\n", comma(more))
		}
		printRehearsed(&p, r.Rehearsed)
		p.printf("Nothing was changed.\n")
	case r.Chosen > 0:
		p.printf("%s: %s.\n", visible(r.count(r.Changed)), c.outcome)
	}
	if left := r.Chosen - r.Changed; left > 0 && !c.dryRun {
		fmt.Fprintf(s.err, "%s changed status meanwhile and was left alone.\n", plural(int64(left), "message", "messages"))
	}
	return p.err
}

// verdict is an error if not all that was named was chosen.
func (c *change) verdict(r *changeReport) error {
	var faults []string
	for i, m := range r.NotChosen {
		if i == changeSample {
			faults = append(faults, comma(len(r.NotChosen)-i)+" more ids")
			break
		}
		if m.Status == nil {
			faults = append(faults, fmt.Sprintf("there is no message %s", m.MessageID))
		} else {
			faults = append(faults, fmt.Sprintf("message %s is %s, not %s", m.MessageID, *m.Status, c.from))
		}
	}
	if n := r.WithoutPayload; n > 0 {
		faults = append(faults, plural(int64(n), "message", "messages")+" cannot run again, the payload was not kept")
	}
	switch {
	case len(r.NotChosen) > 0 || r.Chosen == 0 && len(faults) > 0:
		return exitf(exitNoMatch, "of consumer %s: %s", r.Consumer, strings.Join(faults, "; "))
	case r.Chosen == 0:
		return exitf(exitNoMatch, "nothing to %s: no %s message of consumer %s is chosen", c.verb, c.from, r.Consumer)
	case r.Changed == 0 && !c.dryRun:
		return exitf(exitNoMatch, "nothing was changed: no chosen message of consumer %s is %s any more", r.Consumer, c.from)
	}
	return nil
}
