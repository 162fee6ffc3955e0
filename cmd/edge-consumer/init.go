package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

//go:embed example
var exampleFiles embed.FS

const initHelp = `Write a configuration that works, with comments, a migration and tests, into a
folder: edge.yaml, edge_test.yaml and migrations/0001_orders.sql. Files that are
there already are left alone, and nothing is written then.`

func newInit() *cobra.Command {
	return &cobra.Command{
		Use:   "init [DIR]",
		Short: "Write a configuration to begin with",
		Long:  initHelp,
		Example: `  edge-consumer init
  edge-consumer init /etc/edge-consumer`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("init takes one folder at most; see %s --help", cmd.CommandPath())
			}
			return nil
		},
		RunE: action(func(_ context.Context, args []string, s stdio) error {
			dir := "."
			if len(args) == 1 {
				dir = args[0]
			}
			return writeExample(dir, s)
		}),
	}
}

// writeExample writes the example's files, or none.
func writeExample(dir string, s stdio) error {
	example, err := fs.Sub(exampleFiles, "example")
	if err != nil {
		return err
	}
	var names []string
	err = fs.WalkDir(example, ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		names = append(names, name)
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is there already: nothing was written", filepath.Join(dir, name))
		}
		return nil
	})
	if err != nil {
		return err
	}
	p := printer{w: s.out}
	for _, name := range names {
		text, err := fs.ReadFile(example, name)
		if err != nil {
			return err
		}
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
		p.printf("%s\n", path)
	}
	fmt.Fprintf(s.err, "next: edge-consumer check -c %[1]s; edge-consumer test -c %[1]s; edge-consumer run -c %[1]s\n", filepath.Join(dir, "edge.yaml"))
	return p.err
}
