package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The man pages and docs/commands.md are made from the commands themselves, as
// the help is, and are kept in the repository: a package can be built without
// running anything, and a change of a command shows in its diff. That tests
// write them (make man) keeps the generator out of the program.
//
// It is not cobra's: cobra/doc takes our texts for Markdown, which joins the
// lines of the table of exit codes and reads signs that are none, needs two
// more modules, and puts the day of the build into the pages.

var update = flag.Bool("update", false, "write the man pages and docs/commands.md again")

const (
	manDir       = "../../packaging/man"
	markdownFile = "../../docs/commands.md"
)

// everyCommand is the program and its commands, in the order of the help.
func everyCommand() []*cobra.Command {
	root := newRoot()
	return append([]*cobra.Command{root}, root.Commands()...)
}

func TestReference_ManPages(t *testing.T) {
	t.Parallel()
	if *update {
		require.NoError(t, os.RemoveAll(manDir))
		require.NoError(t, os.MkdirAll(manDir, 0o755))
	}
	var want, have []string
	for _, cmd := range everyCommand() {
		name := pageName(cmd) + ".1"
		want = append(want, name)
		current(t, filepath.Join(manDir, name), manPage(cmd))
	}
	files, err := os.ReadDir(manDir)
	require.NoError(t, err)
	for _, f := range files {
		have = append(have, f.Name())
	}
	assert.ElementsMatch(t, want, have, "each command has a page, and each page a command: make man")
}

func TestReference_Markdown(t *testing.T) {
	t.Parallel()
	current(t, markdownFile, markdown(everyCommand()))
}

// current holds a file to what it should say.
func current(t *testing.T, path, want string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
	}
	have, err := os.ReadFile(path)
	require.NoError(t, err)
	// A checkout on Windows may have other line ends.
	assert.Equal(t, want, strings.ReplaceAll(string(have), "\r\n", "\n"), "%s is out of date: make man", filepath.Base(path))
}

func TestReference_EveryCommandIsExplained(t *testing.T) {
	t.Parallel()
	for _, cmd := range everyCommand() {
		name := cmd.CommandPath()
		assert.NotEmpty(t, cmd.Long, "%s has no long text", name)
		assert.NotEmpty(t, cmd.Short, "%s has no short text", name)
		assert.NotRegexp(t, `\.$`, cmd.Short, "the short text of %s is no sentence", name)
		assert.False(t, cmd.Hidden, "%s is hidden", name)
		require.NotEmpty(t, cmd.Example, "%s has no example", name)
		for line := range strings.SplitSeq(cmd.Example, "\n") {
			assert.Regexp(t, `^  \S`, line, "examples of %s are indented by two", name)
			assert.Contains(t, line, name, "an example of %s does not use it", name)
		}
		for line := range strings.SplitSeq(cmd.Long, "\n") {
			assert.LessOrEqual(t, len(line), 80, "%s: too long for a terminal: %s", name, line)
		}
		eachFlag(cmd, func(f *pflag.Flag) {
			assert.NotEmpty(t, f.Usage, "%s --%s is not explained", name, f.Name)
		})
	}
}

// eachFlag calls fn for the flags of a command; --help, which all have, is none
// of them before the command runs.
func eachFlag(cmd *cobra.Command, fn func(*pflag.Flag)) {
	cmd.LocalFlags().VisitAll(fn)
}

// A block of a help text: a paragraph, or lines that keep their form, which
// are indented there.
type block struct {
	kept bool
	text string
}

func blocks(text string) (all []block) {
	for paragraph := range strings.SplitSeq(strings.Trim(text, "\n"), "\n\n") {
		begun := false
		for line := range strings.SplitSeq(paragraph, "\n") {
			kept := strings.HasPrefix(line, "  ")
			line = strings.TrimPrefix(line, "  ")
			if begun && all[len(all)-1].kept == kept {
				all[len(all)-1].text += "\n" + line
			} else {
				all = append(all, block{kept, line})
			}
			begun = true
		}
	}
	return all
}

func TestReference_Blocks(t *testing.T) {
	t.Parallel()
	assert.Equal(t, []block{{false, "a\nb"}, {false, "c:"}, {true, "0  d\n   e"}, {false, "f"}},
		blocks("a\nb\n\nc:\n  0  d\n     e\n\nf\n"))
}

// The first line of an example is not lost: it is all of the text that is kept.
func TestReference_ExamplesAreWhole(t *testing.T) {
	t.Parallel()
	for _, cmd := range everyCommand() {
		all := blocks(cmd.Example)
		require.Len(t, all, 1, cmd.Name())
		assert.True(t, all[0].kept, cmd.Name())
		assert.Equal(t, strings.Count(cmd.Example, "\n"), strings.Count(all[0].text, "\n"), cmd.Name())
	}
}
