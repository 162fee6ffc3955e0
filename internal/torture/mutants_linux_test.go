package torture

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMutants: the lab finds a program that breaks the promise, within a short
// form's lives.
func TestMutants(t *testing.T) {
	if !*long {
		t.Skip("builds the program anew: with -long")
	}
	seeded(t)
	normal := map[string][]string{"sqlite.go": {
		`"_synchronous":  {"FULL"}`, `"_synchronous":  {"NORMAL"}`,
		`{"synchronous", "2"}`, `{"synchronous", "1"}`,
	}}
	early := map[string][]string{"pull.go": {
		`n := s.inflight.add(raw.Reply, m.size())`, `n := s.inflight.add(raw.Reply, m.size()); _ = s.nc.Publish(raw.Reply, ackAck)`,
	}}
	for _, m := range []struct {
		name  string
		edits map[string][]string
		plan  plan
	}{
		{"synchronous is NORMAL, power cuts", normal, cutting(8, "always")},
		{"acknowledged before the commit, power cuts", early, cutting(8, "always")},
		{"acknowledged before the commit, kill -9", early, killing(8)},
	} {
		t.Run(m.name, func(t *testing.T) {
			bin := consumerBinary(t, mutant(t, m.edits))
			row := &Row{}
			err := torment(t, row, bin, 300, m.plan)
			require.ErrorContains(t, err, "acknowledged and are not in the file")
			t.Logf("found after %d cuts, %d kills: %d lost", row.Cuts, row.Kills, row.Lost)
		})
	}
}

// mutant is an overlay for go build in which files of the root package have
// some text replaced: old, new, old, new.
func mutant(t *testing.T, edits map[string][]string) string {
	dir := t.TempDir()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	replace := map[string]string{}
	for name, texts := range edits {
		b, err := os.ReadFile(filepath.Join(root, name))
		require.NoError(t, err)
		for i := 0; i < len(texts); i += 2 {
			require.Contains(t, string(b), texts[i])
		}
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(strings.NewReplacer(texts...).Replace(string(b))), 0o600))
		replace[filepath.Join(root, name)] = file
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	overlay := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(overlay, b, 0o600))
	return overlay
}
