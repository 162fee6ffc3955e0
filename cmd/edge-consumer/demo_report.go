package main

import (
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

// print writes the proof for people.
func (p *proof) print(w io.Writer, took time.Duration) error {
	pr := printer{w: w}
	line := func(name, n, note string) {
		pr.printf("%s\n", strings.TrimRight("  "+pad(name, 20)+padLeft(n, 10)+"   "+note, " "))
	}
	pr.printf("\nCounted in the stream and in the business tables:\n\n")
	line("published", comma(p.Published), "messages in the stream "+demoStream)
	line("distinct", comma(p.Distinct), "identities (source, id) among them")
	line("applied", comma(p.Applied), "")
	line("duplicates dropped", comma(p.Duplicates),
		comma(p.repeats)+" published twice, "+comma(max(p.Duplicates-int64(p.repeats), 0))+" delivered again, acknowledgements lost or late")
	line("dead", comma(p.Dead), "no GitHub event, no retry can mend it")
	line("conflicts", comma(p.Conflicts), "a known identity with another content, kept and not applied")
	line("business rows", comma(p.BusinessRows), "in the table events; the table repositories adds up too")
	line("lost", comma(p.Lost), "")
	line("applied twice", comma(p.DoubleApplied), "")
	pr.printf("\n")
	if p.holds() {
		pr.printf("Nothing lost, nothing twice. The account of the stream has no gap.\n")
	} else {
		pr.printf("THE PROOF DOES NOT HOLD:\n")
		for _, problem := range p.problems {
			pr.printf("  - %s\n", problem)
		}
	}
	pr.printf("%s messages (%s) in %.1f s, %s a second, publisher and broker in the same process.\n", comma(p.Published),
		humanize.Bytes(p.bytes), took.Seconds(), comma(int64(float64(p.Published)/took.Seconds())))

	pr.printf("\nThe handler is SQL, in %s\n", filepath.Join(filepath.Dir(p.Database), demoGateway, "edge.yaml"))
	pr.printf("\nThe database is %s\nSee for yourself, with sqlite3 or any other tool:\n\n", p.Database)
	for _, query := range demoQueries {
		pr.printf("  sqlite3 %s \"%s\"\n", shellQuote(p.Database), query)
	}
	pr.printf("  edge-consumer audit --db %s\n", shellQuote(p.Database))
	return pr.err
}

// demoQueries are for a reader to try.
var demoQueries = []string{
	"SELECT status, count(*), max(last_error) FROM inbox GROUP BY status",
	"SELECT message_id, stored_hash, refused_hash, count FROM inbox_conflicts",
	"SELECT name, events, issues_open FROM repositories",
}

func pad(s string, n int) string     { return s + strings.Repeat(" ", max(n-len(s), 0)) }
func padLeft(s string, n int) string { return strings.Repeat(" ", max(n-len(s), 0)) + s }

// shellQuote makes s one word for a shell.
func shellQuote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:@%", r)
	}
	if s != "" && strings.TrimFunc(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
