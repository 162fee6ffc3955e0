package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"edge.example/inbox"
	"edge.example/inbox/cmd/edge-consumer/internal/config"
	"edge.example/inbox/cmd/edge-consumer/internal/gateway"
	"github.com/spf13/cobra"
)

const testHelp = `Test the handlers of a configuration: a file of tests says which messages come
in, what becomes of each, and which rows are there afterwards. Each test runs on
a new database; the broker and the database of the configuration are not used.

By default edge.yaml is tested by edge_test.yaml beside it. The exit status is 1
if a test fails, 2 if the configuration or the tests cannot be read.`

func newTest() *cobra.Command {
	var c *configuration
	cmd := &cobra.Command{
		Use:   "test -c FILE [TESTS...]",
		Short: "Test the handlers of a configuration",
		Long:  testHelp,
		Example: `  edge-consumer test -c edge.yaml
  edge-consumer test -c edge.yaml orders_test.yaml devices_test.yaml`,
		RunE: action(func(ctx context.Context, files []string, s stdio) error {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			if len(files) == 0 {
				files = []string{strings.TrimSuffix(c.file, filepath.Ext(c.file)) + "_test.yaml"}
			}
			return runTests(ctx, cfg, files, s)
		}),
	}
	c = configFlag(cmd)
	return cmd
}

func runTests(ctx context.Context, cfg *config.Config, files []string, s stdio) error {
	p := printer{w: s.out}
	ran, failed := 0, 0
	for _, file := range files {
		tests, err := config.LoadTests(file)
		if err != nil {
			return &exitError{exitUsage, err}
		}
		for i := range tests.Tests {
			t := &tests.Tests[i]
			bad, err := runTest(ctx, cfg, t)
			if err != nil {
				return fmt.Errorf("%w: %w", tests.At(i, "test %q", t.Name), err)
			}
			ran++
			if len(bad) == 0 {
				p.printf("ok    %s\n", t.Name)
				continue
			}
			failed++
			p.printf("FAIL  %s (%s)\n", t.Name, tests.At(i, "").Place())
			for _, b := range bad {
				p.printf("      %s\n", strings.ReplaceAll(b, "\n", "\n      "))
			}
		}
	}
	if p.err != nil {
		return p.err
	}
	if failed > 0 {
		return exitf(exitNotHeld, "%d of %s failed", failed, plural(int64(ran), "test", "tests"))
	}
	return nil
}

// runTest returns what is not as t expects.
func runTest(ctx context.Context, cfg *config.Config, t *config.Test) (bad []string, err error) {
	quick := *cfg
	quick.Consumers = append([]config.Consumer(nil), cfg.Consumers...)
	for i := range quick.Consumers { // retries without the waiting
		r := &quick.Consumers[i].Retry
		r.Initial, r.Max, r.Multiplier = config.Duration(time.Millisecond), config.Duration(time.Millisecond), 1
	}
	err = inScratch(ctx, &quick, func(g *gateway.Gateway) error {
		complain := func(format string, args ...any) { bad = append(bad, fmt.Sprintf(format, args...)) }
		retried := false
		for i := range t.Messages {
			m := &t.Messages[i]
			if m.ID == "" {
				m.ID = fmt.Sprintf("message %d", i+1)
			}
			retried = retried || m.Finally != ""
			outcome, err := deliver(ctx, g, m)
			if err != nil {
				return fmt.Errorf("message %d: %w", i+1, err)
			}
			want := m.Outcome
			if want == "" {
				want = inbox.Applied.String()
			}
			_, text, err := fate(ctx, g, m)
			if err != nil {
				return err
			}
			if outcome.String() != want {
				complain("message %d: expected %s, got %s%s", i+1, want, outcome, because(text))
			} else if !strings.Contains(text, m.Error) {
				complain("message %d: expected an error with %q, got%s", i+1, m.Error, because(text))
			}
		}
		if retried {
			if err := retryAll(ctx, g); err != nil {
				return err
			}
		}
		for i := range t.Messages {
			m := &t.Messages[i]
			if m.Finally == "" {
				continue
			}
			status, text, err := fate(ctx, g, m)
			if err != nil {
				return err
			}
			if status != m.Finally {
				complain("message %d: expected %s after retries, got %s%s", i+1, m.Finally, status, because(text))
			}
		}
		for _, r := range t.Rows {
			diff, err := compareRows(ctx, g, &r)
			if err != nil {
				return err
			}
			if diff != "" {
				complain("%s", diff)
			}
		}
		return nil
	})
	return bad, err
}

func because(text string) string {
	if text == "" {
		return ""
	}
	return ": " + text
}

func deliver(ctx context.Context, g *gateway.Gateway, m *config.TestMessage) (inbox.Outcome, error) {
	msg := inbox.Message{
		ID: m.ID, Source: m.Source, Type: m.Type, Subject: m.Subject, Payload: m.Data, Headers: inbox.Header{},
	}
	for k, v := range m.Headers {
		msg.Headers[k] = []string{v}
	}
	return g.Deliver(ctx, m.Consumer, msg, m.Key)
}

// fate is the status of a message, and its last error.
func fate(ctx context.Context, g *gateway.Gateway, m *config.TestMessage) (status, text string, err error) {
	err = g.Inbox().View(ctx, func(ctx context.Context, rx *inbox.Rx) error {
		return rx.QueryRowContext(ctx, `
			SELECT status, coalesce(last_error, '') FROM inbox
			 WHERE consumer = ? AND source = ? AND message_id = ?`, m.Consumer, m.Source, m.ID).Scan(&status, &text)
	})
	return status, text, err
}

// retriesLimit bounds the waiting for retries of one test.
const retriesLimit = 10 * time.Second

// retryAll retries until nothing is pending, or for some time.
func retryAll(ctx context.Context, g *gateway.Gateway) error {
	ctx, cancel := context.WithTimeout(ctx, retriesLimit)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- g.Inbox().Run(ctx) }()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for pending := int64(1); pending > 0; {
		select {
		case err := <-done:
			return err
		case <-tick.C:
		}
		stats, err := g.Inbox().Stats(context.WithoutCancel(ctx))
		if err != nil {
			return err
		}
		pending = 0
		for _, c := range stats.Consumers {
			pending += c.Pending
		}
	}
	cancel()
	return <-done
}

// compareRows says how the rows of a query differ from those expected.
func compareRows(ctx context.Context, g *gateway.Gateway, want *config.TestRows) (diff string, err error) {
	var got []map[string]any
	err = g.Inbox().View(ctx, func(ctx context.Context, rx *inbox.Rx) error {
		rows, err := rx.QueryContext(ctx, want.Query)
		if err != nil {
			return err
		}
		defer rows.Close()
		columns, err := rows.Columns()
		if err != nil {
			return err
		}
		for rows.Next() {
			values, dest := make([]any, len(columns)), make([]any, len(columns))
			for i := range values {
				dest[i] = &values[i]
			}
			if err := rows.Scan(dest...); err != nil {
				return err
			}
			row := map[string]any{}
			for i, c := range columns {
				row[c] = values[i]
			}
			got = append(got, row)
		}
		return rows.Err()
	})
	if err != nil {
		return "", fmt.Errorf("%s: %w", want.Query, err)
	}
	var lines []string
	for i := range max(len(got), len(want.Expect)) {
		var g, w map[string]any
		if i < len(got) {
			g = got[i]
		}
		if i < len(want.Expect) {
			w = want.Expect[i]
		}
		if sameRow(g, w) {
			lines = append(lines, "  "+rowText(g))
			continue
		}
		if w != nil {
			lines = append(lines, "- "+rowText(w))
		}
		if g != nil {
			lines = append(lines, "+ "+rowText(g))
		}
		diff = "differs"
	}
	if diff == "" {
		return "", nil
	}
	return want.Query + "\n" + strings.Join(lines, "\n"), nil
}

// sameRow compares by value: 2 and 2.0 are the same number.
func sameRow(a, b map[string]any) bool {
	if a == nil || b == nil || len(a) != len(b) {
		return false
	}
	for k, v := range a {
		w, ok := b[k]
		if !ok || !reflect.DeepEqual(plainValue(v), plainValue(w)) {
			return false
		}
	}
	return true
}

func plainValue(v any) any {
	switch v := v.(type) {
	case int64:
		return float64(v)
	case uint64:
		return float64(v)
	case int:
		return float64(v)
	case bool:
		if v {
			return 1.0
		}
		return 0.0
	case []byte:
		return string(v)
	}
	return v
}

func rowText(row map[string]any) string {
	for k, v := range row {
		if b, ok := v.([]byte); ok {
			row[k] = string(b)
		}
	}
	text, err := json.Marshal(row) // its keys are sorted
	if err != nil {
		return fmt.Sprint(row)
	}
	return string(text)
}
