//go:build linux || darwin

package torture

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A mutant is the inbox with a deliberate fault, of the kind that somebody could
// make. edits replace text in files of the root package: old, new, old, new.
// The short form of the part must fail with it, and say want, if that does not
// depend on chance.
type mutant struct {
	name  string
	part  string
	want  string
	edits map[string][]string
}

var (
	normal = map[string][]string{"sqlite.go": {
		`"_synchronous":  {"FULL"}`, `"_synchronous":  {"NORMAL"}`,
		`{"synchronous", "2"}`, `{"synchronous", "1"}`,
	}}
	early = map[string][]string{"pull.go": {
		"d.inflight = s.inflight.add(raw.Reply, m.size())", "d.inflight = s.inflight.add(raw.Reply, m.size()); _ = s.nc.Publish(raw.Reply, ackAck)",
	}}
)

// Segments of 8 messages instead of 8,192, groups of two that are large, and a
// log of 100 pages: what happens where a segment ends, in batches and in
// checkpoints, the short forms then meet all the time.
var small = map[string][]string{
	"schema/0002_segments.sql": {"(seq >> 13,", "(seq >> 3,"},
	"ledger.go":                {"(seq >> 13,", "(seq >> 3,"},
	"admin.go":                 {") >> 13", ") >> 3", "m.seq >> 13", "m.seq >> 3"},
	"segments.go":              {"segmentBits = 13", "segmentBits = 3", "WHERE seq >> 13", "WHERE seq >> 3", "WHERE m.seq >> 13", "WHERE m.seq >> 3"},
	"names.go":                 {"* 8192 - 1", "* 8 - 1"},
	"turn.go":                  {"minBare    = 32 ", "minBare    = 2 "},
	"sqlite.go":                {"walAutocheckpoint = 8000", "walAutocheckpoint = 100"},
}

// inSmall is small with a fault.
func inSmall(file string, texts ...string) map[string][]string {
	edits := maps.Clone(small)
	edits[file] = slices.Concat(edits[file], texts)
	return edits
}

var mutants = []mutant{
	{"synchronous=NORMAL", "CrashImages", "acknowledged", normal},
	{"acknowledged before the commit", "CrashImages", "acknowledged", map[string][]string{"writer.go": {
		"	if err := w.conn.commit(); err != nil {",
		"	for i, j := range w.group {\n		j.settle(w.errs[i])\n	}\n	w.group, w.errs = nil, nil\n	if err := w.conn.commit(); err != nil {",
	}}},
	{"synchronous=NORMAL, real power cuts", "PowerCuts", "acknowledged", normal},
	{"acknowledged on arrival, real power cuts", "PowerCuts", "acknowledged", early},
	{"acknowledged on arrival, kill -9", "Kill9", "acknowledged", early},
	{"a failed commit taken for done", "IOFaults", "", map[string][]string{"writer.go": {
		`	return fmt.Errorf("%w: %w", ErrOutcomeUnknown, storageError("committing", err))`, `	return nil`,
	}}},
	// Each of the layers is enough: with the commit hook left in place, the
	// inbox bears all the rest of this one.
	{"RELEASE unchecked, the statement after a lost transaction commits", "CrashImages", "", map[string][]string{
		"turn.go": {
			`return w.fail("RELEASE", e)`, `return err`,
			`return w.fail("ROLLBACK TO", e)`, `return err`,
			"	case c.lost:\n", "	case false:\n",
		},
		"guard.go": {
			"			g.lost = true\n", "",
			"		return 1 // turns the commit into a rollback", "		return 0",
		},
	}},
	{"duplicates looked up before inserting", "CrashImages", "", map[string][]string{
		"delivery.go": {
			"	if known != 0 {\n		if err := d.known", "	if known != 0 && d.seen {\n		if err := d.known",
			"	store bool    // do not apply it now", "	seen, store bool",
		},
		"consumer.go": {
			"	d.cols = columns{", `	var n int
	_ = c.ib.readers.QueryRow("SELECT count(*) FROM inbox_message WHERE message_id = ?", m.ID).Scan(&n)
	d.seen = n > 0
	d.cols = columns{`,
		},
	}},
	{"conflict ignored", "CrashImages", "other content true: duplicate", map[string][]string{"delivery.go": {
		"if string(hash) == string(d.hash[:]) || d.c.opts.IgnoreConflicts {", "if string(hash) != \"\" {",
	}}},
	{"order by key forgotten", "CrashImages", "times not so", map[string][]string{"delivery.go": {
		"		if blocked, err = w.keyOpen(c.id, m.Key, r.seq, !c.opts.DeadPasses); err != nil {", "		if _, err = w.keyOpen(c.id, m.Key, r.seq, !c.opts.DeadPasses); err != nil {",
	}}},
	{"identity from the sequence alone", "Network", "", map[string][]string{"identity.go": {
		`		b = strconv.AppendInt(b, m.pos.created, 10)
		b = append(b, '/')
		b = strconv.AppendUint(b, m.pos.seq, 10)
		b = append(b, '/')
		b = strconv.AppendInt(b, m.pos.time, 10)
`, `		b = strconv.AppendUint(b, m.pos.seq, 10)
`,
	}}},
	{"backoff trusts the wall clock", "ClockJumps", "Condition never satisfied", map[string][]string{
		"writer.go":   {"			_, err = w.conn.exec(qClock, w.now)\n", ""},
		"delivery.go": {"if s.nextAt > w.now && s.nextAt-w.now <= s.delay {", "if s.nextAt > w.now {"},
	}},
	{"a message tried again keeps its attempts", "Linearizable", "", map[string][]string{"admin.go": {
		"SET status = 1, attempts = 0, failures = 0, processed_at", "SET status = 1, processed_at",
	}}},
	{"a reader that met trouble with the disk is used again", "IOFaults_Readers", "", map[string][]string{"inbox.go": {
		"	if suspect(err) {", "	if false {",
	}}},
	{"earlier segments are not looked into", "CrashImages", "", inSmall("ledger.go", "err != nil || known != 0 {\n		return known", "err != nil {\n		return known")},
	{"a filter that is filled in part is taken for whole", "CrashImages", "", inSmall("segments.go", "if seq%segmentSize == 0 || seq == 1 {", "if true {")},
	{"the filter of a segment is kept before it is full", "CrashImages", "", inSmall("segments.go",
		"if newest := (w.nextSeq - 1) >> segmentBits; newest", "if newest := (w.nextSeq-1)>>segmentBits + 1; newest",
		"if w.newest = min(w.newest, next>>segmentBits); segment", "if w.newest = max(w.newest, next>>segmentBits+1); segment")},
	{"a batch takes what an earlier segment has", "CrashImages", "", inSmall("batch.go", " || w.mayKnow(r)", "")},
	{"the poller ends at the first error", "IOFaults_Poller", "Condition never satisfied", map[string][]string{"worker.go": {
		"			drop() // whatever is wrong with it, the next one may be well", "			return",
	}}},
}

// with is the go command on the short form of a part, with files replaced.
func with(overlay, part string, seed int) *exec.Cmd {
	cmd := exec.Command("go", "test", "-count=1", "-failfast", "-run", "^Test"+part+"$", ".", "-args", "-seed", strconv.Itoa(seed))
	cmd.Env = append(os.Environ(), "GOFLAGS=-overlay="+overlay)
	return cmd
}

// TestMutants: a lab that cannot fail proves nothing. Each mutant is caught by
// the short form of one part. (Here only the texts are looked for: make mutants
// runs them.)
func TestMutants(t *testing.T) {
	if !*long {
		for _, m := range mutants {
			m.overlay(t)
		}
		return
	}
	for _, part := range []string{"CrashImages", "IOFaults", "Kill9", "Simulation", "Linearizable"} {
		t.Run("none, small segments, "+part, func(t *testing.T) {
			if runtime.GOOS != "linux" && part == "Kill9" {
				t.Skip("Linux only")
			}
			out, err := with(mutant{name: "small segments", part: part, edits: small}.overlay(t), part, 1).CombinedOutput()
			require.NoError(t, err, verdict(string(out)))
		})
	}
	r := row(t, "Mutants, each caught")
	for _, m := range mutants {
		if runtime.GOOS != "linux" && (m.part == "PowerCuts" || m.part == "Kill9") {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			r.Faults++
			overlay := m.overlay(t)
			var out []byte
			var err error
			for seed := 1; err == nil && seed <= 8; seed++ { // chance has a part in most: the machine's, too
				out, err = with(overlay, m.part, seed).CombinedOutput()
			}
			require.Error(t, err, "the mutant survived")
			require.Contains(t, string(out), "--- FAIL: Test", "it was not the lab that failed")
			require.Contains(t, string(out), m.want)
			t.Log(verdict(string(out)))
		})
	}
}

// verdict is what a failed test said first.
func verdict(out string) string {
	_, said, found := strings.Cut(out, "Error:")
	if !found {
		said = out
	}
	said = strings.Join(strings.Fields(said), " ")
	return said[:min(len(said), 200)]
}

// overlay makes the file for go's -overlay that puts the mutant's files in
// place of ours.
func (m mutant) overlay(t *testing.T) string {
	dir := t.TempDir()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	replace := map[string]string{}
	for name, texts := range m.edits {
		b, err := os.ReadFile(filepath.Join(root, name))
		require.NoError(t, err)
		text := string(b)
		for i := 0; i < len(texts); i += 2 {
			require.Equal(t, 1, strings.Count(text, texts[i]), "%s: the mutant %q must be fitted to %s: %q", m.part, m.name, name, texts[i])
			text = strings.Replace(text, texts[i], texts[i+1], 1)
		}
		file := filepath.Join(dir, filepath.Base(name))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		replace[filepath.Join(root, name)] = file
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	file := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(file, b, 0o600), fmt.Sprint(m.name))
	return file
}
