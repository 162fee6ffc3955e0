package main

import (
	"context"
	"database/sql"
	"fmt"
	"runtime"
	"runtime/debug"

	"edge.example/inbox"
	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	_ "modernc.org/sqlite"
)

// version is set by the linker (-X main.version=v1.2.3); otherwise the build
// information has it.
var version string

// versions is the JSON of the version command.
type versions struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
	SQLite  string `json:"sqlite"`
	NATS    string `json:"nats_go"`
	Schema  int    `json:"schema"`
}

const versionHelp = `Print the version of the program, and what a report of a fault should name too:
Go, the platform, SQLite, the NATS client, and the version of the schema that
this program makes and understands.`

func newVersion() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of the program and of what it is made of",
		Long:  versionHelp,
		Example: `  edge-consumer version
  edge-consumer version --json`,
		Args: noArgs,
		RunE: action(func(ctx context.Context, _ []string, s stdio) error {
			v, err := readVersions(ctx)
			switch {
			case err != nil:
				return err
			case asJSON:
				return writeJSON(s.out, v)
			}
			p := printer{w: s.out}
			p.printf("edge-consumer %s\n", v.Version)
			p.printf("  go       %s %s/%s\n", v.Go, v.OS, v.Arch)
			p.printf("  sqlite   %s\n", v.SQLite)
			p.printf("  nats.go  %s\n", v.NATS)
			p.printf("  schema   %d\n", v.Schema)
			return p.err
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

func readVersions(ctx context.Context) (versions, error) {
	v := versions{
		Version: version,
		Go:      runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
		NATS:   nats.Version,
		Schema: inbox.SchemaVersion,
	}
	if v.Version == "" {
		v.Version = "(devel)"
		if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
			v.Version = info.Main.Version
		}
	}
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return v, err
	}
	defer db.Close()
	if err := db.QueryRowContext(ctx, `SELECT sqlite_version()`).Scan(&v.SQLite); err != nil {
		return v, fmt.Errorf("asking SQLite for its version: %w", err)
	}
	return v, nil
}
