package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
)

// pageName is what to ask man for.
func pageName(cmd *cobra.Command) string {
	return strings.ReplaceAll(cmd.CommandPath(), " ", "-")
}

// manPage is the page of a command, in the language of man(7). It has no date,
// so that it changes only when the command does.
func manPage(cmd *cobra.Command) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	kept := func(text string) { line(".PP\n.RS 4\n.nf\n%s\n.fi\n.RE", roff(text)) }

	line(`.\" Made from the help of the command by make man.`)
	line(`.TH %s 1 "" "edge\-consumer" "edge\-consumer"`, strings.ToUpper(roff(pageName(cmd))))
	line(`.\" Left-aligned, no hyphens, one space after a sentence: commands are to be copied.`)
	line(".nh\n.ad l\n.ss 12 0")
	line(".SH NAME\n%s \\- %s", roff(pageName(cmd)), roff(lowered(cmd.Short)))
	line(".SH SYNOPSIS\n%s", synopsis(cmd))
	line(".SH DESCRIPTION")
	for _, p := range blocks(cmd.Long) {
		if p.kept {
			kept(p.text)
		} else {
			line(".PP\n%s", roff(p.text))
		}
	}
	if cmd.HasSubCommands() {
		line(".SH COMMANDS")
		for _, sub := range cmd.Commands() {
			line(".TP\n\\fB%s\\fR(1)\n%s", roff(pageName(sub)), roff(sub.Short))
		}
	}
	if cmd.HasAvailableLocalFlags() {
		line(".SH OPTIONS")
		eachFlag(cmd, func(f *pflag.Flag) { line("%s", option(f)) })
	}
	line(".SH EXAMPLES")
	kept(blocks(cmd.Example)[0].text)
	line(".SH SEE ALSO")
	if cmd.HasParent() {
		line(`\fB%s\fR(1)`, roff(pageName(cmd.Root())))
	} else {
		line(`\fBsystemctl\fR(1)`)
	}
	return b.String()
}

// synopsis has what is typed as it stands in bold.
func synopsis(cmd *cobra.Command) string {
	if cmd.HasSubCommands() {
		return `\fB` + roff(cmd.CommandPath()) + `\fR COMMAND [flags]`
	}
	rest := strings.TrimPrefix(cmd.UseLine(), cmd.CommandPath())
	return `\fB` + roff(cmd.CommandPath()) + `\fR` + roff(rest)
}

func option(f *pflag.Flag) string {
	value, usage := pflag.UnquoteUsage(f)
	name := `\fB` + roff("--"+f.Name) + `\fR`
	if f.Shorthand != "" {
		name = `\fB` + roff("-"+f.Shorthand) + `\fR, ` + name
	}
	if value != "" {
		name += ` \fI` + roff(value) + `\fR`
	}
	switch f.DefValue {
	case "", "false", "0", "[]":
	default:
		usage += " (default " + f.DefValue + ")"
	}
	return ".TP\n" + name + "\n" + roff(usage)
}

// lowered begins in lower case, as the names of man pages do; NATS stays.
func lowered(s string) string {
	if len(s) > 1 && strings.ToUpper(s[:2]) == s[:2] {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}

// roff is a text that means itself: no line is a request, and the signs of
// ASCII are not made prettier.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}

func TestReference_Roff(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "\\&.SH x\n\\-\\-db \\(aqa\\eb\\(aq \\(ti/c", roff(".SH x\n--db 'a\\b' ~/c"))
}
