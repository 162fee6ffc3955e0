package main

import (
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// A filter says which messages of the view inbox a command is about.
type filter struct {
	cmd *cobra.Command

	consumer, source  string
	typ, key, errText string
	sinceText, toText string
	since, until      time.Time // of the time a message was received: since <= t < until
	statuses          []string
	ids               []string
}

// messageStatuses are those of the view inbox.
var messageStatuses = []string{"pending", "processing", "completed", "dead", "discarded"}

// filterFlags adds to cmd the flags that all commands have which choose messages.
func filterFlags(cmd *cobra.Command) *filter {
	f := &filter{cmd: cmd}
	flags := cmd.Flags()
	flags.StringVar(&f.consumer, "consumer", "", "only messages of this consumer")
	flags.StringVar(&f.source, "source", "", "only messages of this source, as list shows it with --json")
	flags.StringVar(&f.typ, "type", "", "only messages of this type")
	flags.StringVar(&f.key, "key", "", "only messages with this key")
	flags.StringVar(&f.errText, "error", "", "only messages whose last error holds this text")
	flags.StringVar(&f.sinceText, "since", "", "only messages received since: 2h ago, or 2006-01-02T15:04:05Z")
	flags.StringVar(&f.toText, "until", "", "only messages received before: 2h ago, or 2006-01-02T15:04:05Z")
	return f
}

// check reads what the flags say. A flag that is given and empty, as by a
// shell variable that is not set, would choose more than was meant.
func (f *filter) check(now time.Time) (err error) {
	for _, name := range []string{"consumer", "source", "type", "key", "error", "since", "until"} {
		if flag := f.cmd.Flags().Lookup(name); flag.Changed && flag.Value.String() == "" {
			return exitf(exitUsage, "--%s is empty: leave it out, or say which", name)
		}
	}
	if f.since, err = moment("since", f.sinceText, now); err != nil {
		return err
	}
	if f.until, err = moment("until", f.toText, now); err != nil {
		return err
	}
	if !f.since.IsZero() && !f.until.IsZero() && !f.since.Before(f.until) {
		return exitf(exitUsage, "--since %s is not before --until %s", f.sinceText, f.toText)
	}
	return nil
}

// narrow reports whether the filter has a condition on messages, the consumer
// and the source aside.
func (f *filter) narrow() bool {
	return f.typ != "" || f.key != "" || f.errText != "" || !f.since.IsZero() || !f.until.IsZero()
}

// moment reads a time: how long ago, or when.
func moment(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	return time.Time{}, exitf(exitUsage, "--%s %q is neither how long ago (90s, 15m, 2h, 48h) nor a time (%s)",
		flag, text, now.UTC().Format(time.RFC3339))
}

// where is the filter as a condition on the view inbox.
func (f *filter) where() (condition string, args []any) {
	condition = "true"
	and := func(text string, values ...any) {
		condition += " AND " + text
		args = append(args, values...)
	}
	oneOf := func(column string, values []string) {
		if len(values) == 0 {
			return
		}
		var list []any
		for _, v := range values {
			list = append(list, v)
		}
		and(column+" IN (?"+strings.Repeat(", ?", len(values)-1)+")", list...)
	}
	for _, c := range []struct{ column, value string }{
		{"consumer", f.consumer}, {"source", f.source}, {"type", f.typ}, {"key", f.key},
	} {
		if c.value != "" {
			and(c.column+" = ?", c.value)
		}
	}
	oneOf("status", f.statuses)
	oneOf("message_id", f.ids)
	if f.errText != "" {
		and("instr(last_error, ?) > 0", f.errText)
	}
	if !f.since.IsZero() {
		and("received_at >= ?", viewTime(f.since))
	}
	if !f.until.IsZero() {
		and("received_at < ?", viewTime(f.until))
	}
	return condition, args
}

// viewTime is a time as the views write it.
func viewTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
