package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

const markdownHead = `# The commands

Made from the help of the commands by ` + "`make man`" + `, as the man pages are. Every
command has ` + "`--help`" + ` besides.
`

// markdown is one document of all the commands, the program first.
func markdown(all []*cobra.Command) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	kept := func(text string) { line("\n```\n%s\n```", text) }

	b.WriteString(markdownHead)
	line("\n| command | |\n|---|---|")
	for _, cmd := range all[1:] {
		line("| [%s](#%s) | %s |", cmd.Name(), pageName(cmd), markdownText(cmd.Short))
	}
	for _, cmd := range all {
		line("\n## %s", cmd.CommandPath())
		for _, p := range blocks(cmd.Long) {
			if p.kept {
				kept(p.text)
			} else {
				line("\n%s", markdownText(p.text))
			}
		}
		if cmd.HasParent() {
			kept(cmd.UseLine())
		}
		if cmd.HasAvailableLocalFlags() {
			line("\nFlags:")
			kept(strings.TrimRight(cmd.LocalFlags().FlagUsages(), "\n"))
		}
		line("\nExamples:")
		kept(blocks(cmd.Example)[0].text)
	}
	return b.String()
}

// markdownText is a text that means itself.
func markdownText(s string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "_", `\_`, "<", "&lt;", "`", "\\`", "|", `\|`, "[", `\[`).Replace(s)
}
