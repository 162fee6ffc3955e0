package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

const completionHelp = `Print a script that makes a shell complete the commands, the flags and their
values. The Debian package installs those of bash, zsh and fish.

bash needs the package bash-completion. In zsh, compinit must have run, and the
script belongs into a folder of $fpath.`

// shells are those that there is a script for.
var shells = []string{"bash", "zsh", "fish", "powershell"}

func newCompletion() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print completions for bash, zsh, fish or powershell",
		Long:  completionHelp,
		Example: `  source <(edge-consumer completion bash)
  edge-consumer completion zsh > "${fpath[1]}/_edge-consumer"
  edge-consumer completion fish > ~/.config/fish/completions/edge-consumer.fish
  edge-consumer completion powershell | Out-String | Invoke-Expression`,
		ValidArgs: shells,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || !slices.Contains(shells, args[0]) {
				return fmt.Errorf("completion takes one of %s; see %s --help", strings.Join(shells, ", "), cmd.CommandPath())
			}
			return nil
		},
	}
	cmd.RunE = action(func(_ context.Context, args []string, s stdio) error {
		root := cmd.Root()
		switch args[0] {
		case "bash":
			return root.GenBashCompletionV2(s.out, true)
		case "zsh":
			return root.GenZshCompletion(s.out)
		case "fish":
			return root.GenFishCompletion(s.out, true)
		default:
			return root.GenPowerShellCompletionWithDesc(s.out)
		}
	})
	return cmd
}

// completeValues says what shells offer besides commands and flags: files only
// where files belong, not for a message's id or a time.
func completeValues(root *cobra.Command) {
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	files := cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)
	folders := cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
	words := func(w ...string) cobra.CompletionFunc {
		return cobra.FixedCompletions(w, cobra.ShellCompDirectiveNoFileComp)
	}
	values := map[string]cobra.CompletionFunc{
		"config":     files,
		"db":         files,
		"dir":        folders,
		"status":     words("pending", "processing", "completed", "dead", "discarded"),
		"log-level":  words("debug", "info", "warn", "error"),
		"log-format": words("text", "json"),
		"listen":     words("off", "127.0.0.1:9464"),
	}
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "init":
			cmd.ValidArgsFunction = folders
		case "test":
			cmd.ValidArgsFunction = files
		}
		for name, fn := range values {
			if cmd.Flags().Lookup(name) == nil {
				continue
			}
			if err := cmd.RegisterFlagCompletionFunc(name, fn); err != nil {
				panic(err) // it is registered twice
			}
		}
	}
}
