//go:build linux || darwin

package torture

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// report is the document whose table the run renews: make torture.
var report = flag.String("report", "", "the Markdown file that gets the table, between its two marks")

// A Row of the table is what one part of the lab did, and what it found. lost,
// twice and corrupt are 0, or the part has failed.
type Row struct {
	Part       string
	Faults     int // injected
	Images     int // of a disk, looked at
	Kills      int // of processes
	Cuts       int // of power, or of connections
	Duplicates int // deliveries that had come before
	Lost       int // acknowledged and not there, or published and not accounted for
	Twice      int // applied twice
	Corrupt    int // quick_check, or another invariant
	Seconds    float64
	Note       string // "skipped: …", and why

	sync.Mutex
}

var (
	rows   []*Row
	rowsMu sync.Mutex
)

// row begins the part's row of the table; it ends with the test.
func row(t *testing.T, part string) *Row {
	r := &Row{Part: part}
	rowsMu.Lock()
	rows = append(rows, r)
	rowsMu.Unlock()
	start := time.Now()
	t.Cleanup(func() {
		r.Seconds = time.Since(start).Seconds()
		if t.Failed() {
			r.Note = strings.TrimSpace("failed " + r.Note)
		}
		t.Log(r)
	})
	return r
}

// skip skips the part, and says in the table why.
func (r *Row) skip(t *testing.T, why string) {
	t.Helper()
	r.Note = "skipped: " + why
	t.Skip(why)
}

// String is the row as a line of Markdown.
func (r *Row) String() string {
	r.Lock()
	defer r.Unlock()
	cell := func(n int) string {
		if n == 0 {
			return "–"
		}
		return thousands(n)
	}
	name := r.Part
	if r.Note != "" {
		name += " (" + r.Note + ")"
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %d | %d | %d | %.0f |",
		name, cell(r.Faults), cell(r.Images), cell(r.Kills), cell(r.Cuts), cell(r.Duplicates), r.Lost, r.Twice, r.Corrupt, r.Seconds)
}

func thousands(n int) string {
	s := strconv.Itoa(n)
	for at := len(s) - 3; at > 0; at -= 3 {
		s = s[:at] + "," + s[at:]
	}
	return s
}

const (
	tableBegin = "<!-- make torture writes from here -->\n"
	tableEnd   = "<!-- to here -->\n"
)

// table is the rows of this run, after those of an older table whose parts did
// not run, and their sums.
func table(older string) string {
	lines := keep(older)
	for _, r := range rows {
		lines = append(lines, r.String())
	}
	var sums [9]int
	for _, line := range lines {
		for i, cell := range cells(line)[1:] {
			n, err := strconv.Atoi(strings.ReplaceAll(cell, ",", ""))
			if err == nil { // the others are "–"
				sums[i] += n
			}
		}
	}
	all := &Row{"**all**", sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6], sums[7], float64(sums[8]), "", sync.Mutex{}}
	return "| part | faults | images | kills | cuts | duplicates | lost | applied twice | corrupt | seconds |\n" +
		"|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n" +
		strings.Join(append(lines, all.String()), "\n") + "\n"
}

// keep are the rows of an older table whose parts did not run this time.
func keep(older string) (lines []string) {
	for line := range strings.Lines(older) {
		c := cells(strings.TrimSpace(line))
		if len(c) != 10 || c[0] == "part" || c[0] == "**all**" || strings.HasPrefix(c[0], "-") {
			continue
		}
		again := false
		for _, r := range rows {
			again = again || c[0] == r.Part || strings.HasPrefix(c[0], r.Part+" (")
		}
		if !again {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

func cells(line string) (all []string) {
	for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
		all = append(all, strings.TrimSpace(cell))
	}
	return all
}

// versions says what the lab ran on.
func versions() string {
	form := "the short form"
	if *long {
		form = "the long form"
	}
	parts := []string{time.Now().UTC().Format(time.DateOnly), form, fmt.Sprintf("%s %s/%s, %d cores", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU())}
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Path}} {{.Version}}", "modernc.org/sqlite", "github.com/nats-io/nats-server/v2", "github.com/nats-io/nats.go").Output()
	if err == nil {
		parts = append(parts, strings.Split(strings.TrimSpace(string(out)), "\n")...)
	}
	return strings.Join(parts, ", ")
}

func writeReport(file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(b), tableBegin)
	between, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no marks for the table: %q and %q", file, tableBegin, tableEnd)
	}
	text := before + tableBegin + "\n" + versions() + ":\n\n" + table(between) + "\n" + tableEnd + after
	return os.WriteFile(file, []byte(text), 0o644)
}

// atExit runs when all tests are done.
var atExit []func()

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // what runs side by side waits most of its time
	flag.Parse()
	code := m.Run()
	for _, fn := range atExit {
		fn()
	}
	if len(rows) > 0 && (testing.Verbose() || *report != "") {
		fmt.Printf("\n%s:\n\n%s\n", versions(), table(""))
	}
	if *report != "" {
		if err := writeReport(*report); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// TestReport_KeepsTheText: only what is between the marks changes, and the rows
// of parts that did not run stay.
func TestReport_KeepsTheText(t *testing.T) {
	file := filepath.Join(t.TempDir(), "r.md")
	older := "| part | x |\n| Another part (note) | 1,000 | – | – | – | 2 | 0 | 0 | 0 | 3 |\n| **all** | 9 | – | – | – | 2 | 0 | 0 | 0 | 3 |\n"
	require.NoError(t, os.WriteFile(file, []byte("# R\n"+tableBegin+"old\n"+older+tableEnd+"after\n"), 0o600))
	require.NoError(t, writeReport(file))
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Regexp(t, `(?s)^# R\n<!--.*\| part \|.*-->\nafter\n$`, string(b))
	require.NotContains(t, string(b), "old")
	require.Contains(t, string(b), "\n| Another part (note) | 1,000 | – | – | – | 2 | 0 | 0 | 0 | 3 |\n")
	require.Equal(t, 1, strings.Count(string(b), "**all**"))
	require.NoError(t, os.WriteFile(file, []byte("# R\n"), 0o600))
	require.ErrorContains(t, writeReport(file), "marks")
}
