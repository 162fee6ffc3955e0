package main

import (
	"encoding/hex"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
)

// print writes the life of a message for people.
func (l *messageLife) print(p *printer, payload bool) {
	line := func(name, value string) { p.printf("%-10s  %s\n", name, visible(value)) }
	line("message", l.MessageID)
	line("consumer", l.Consumer)
	line("source", l.Source)
	line("status", l.standing(time.Now()))
	line("received", l.ReceivedAt)
	if l.ProcessedAt != nil {
		line(l.Status, *l.ProcessedAt)
	}
	for _, part := range []struct {
		name  string
		value *string
	}{{"type", l.Type}, {"subject", l.Subject}, {"key", l.Key}} {
		if part.value != nil {
			line(part.name, *part.value)
		}
	}
	switch {
	case l.Stream != nil && l.StreamSeq != nil:
		line("stream", *l.Stream+", sequence "+comma(*l.StreamSeq))
	default:
		line("stream", "none: it was handed to the inbox by the program")
	}
	line("hash", l.PayloadHash)
	if l.PayloadBytes == nil {
		line("payload", "not kept")
	} else {
		line("payload", humanize.Bytes(uint64(*l.PayloadBytes)))
	}
	duplicates := comma(l.Duplicates)
	if l.LastDuplicateAt != nil {
		duplicates += ", the last at " + *l.LastDuplicateAt
	}
	line("duplicates", duplicates)
	line("conflicts", comma(len(l.Conflicts)))
	for _, c := range l.Conflicts {
		p.printf("  stored   %s\n", l.PayloadHash)
		p.printf("  refused  %s, %s, %s from %s to %s\n", c.Hash, humanize.Bytes(uint64(c.Bytes)),
			plural(c.Count, "time", "times"), c.FirstSeen, c.LastSeen)
	}
	line("failures", comma(len(l.FailedAttempts)))
	for _, a := range l.FailedAttempts {
		p.printf("  attempt %d at %s: %s\n", a.Attempt, a.At, visible(a.Error))
	}
	if n := len(l.FailedAttempts); l.LastError != nil && (n == 0 || l.FailedAttempts[n-1].Error != *l.LastError) {
		line("last error", *l.LastError) // a message may be dead without an attempt
	}
	if payload && l.PayloadBytes != nil {
		p.printf("\n%s", indented(l.payload))
	}
}

// standing is the status with what it means for the next attempt.
func (l *messageLife) standing(now time.Time) string {
	s := l.Status + ", " + plural(l.Attempts, "attempt", "attempts")
	if due := l.due(now); due != "" {
		s += ", " + due
	}
	return s
}

// indented is a payload for people, under the rest and never like it.
func indented(payload []byte) string {
	text := hex.Dump(payload)
	if plainText(payload) {
		text = string(payload)
	}
	if text = strings.TrimSuffix(text, "\n"); text == "" {
		return ""
	}
	return "    " + strings.ReplaceAll(text, "\n", "\n    ") + "\n"
}

// plainText is true of what a terminal shows and obeys in nothing: printable
// characters, new lines and tabs.
func plainText(payload []byte) bool {
	return utf8.Valid(payload) && strings.IndexFunc(string(payload), func(r rune) bool {
		return invisible(r) && r != '\n' && r != '\t'
	}) < 0
}
