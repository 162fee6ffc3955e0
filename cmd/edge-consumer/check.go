package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"edge.example/inbox/cmd/edge-consumer/internal/config"
	"edge.example/inbox/cmd/edge-consumer/internal/gateway"
	"github.com/spf13/cobra"
)

const checkHelp = `Check a configuration without the network and without its database: the
settings, the files it names (migrations, JSON Schemas, credentials), and every
SQL statement, which is prepared against a new database made by the migrations.

Statements are prepared only, not run: that finds unknown tables, columns and
parameters, but not what goes wrong with a message. The command test runs them.
What works but may be a trap is printed as a warning.

The exit status is 0 if run would start with it, 2 if it is wrong.`

func newCheck() *cobra.Command {
	var c *configuration
	cmd := &cobra.Command{
		Use:   "check -c FILE",
		Short: "Check a configuration",
		Long:  checkHelp,
		Example: `  edge-consumer check -c edge.yaml
  edge-consumer check -c edge.yaml && systemctl reload edge-consumer`,
		Args: noArgs,
		RunE: action(func(ctx context.Context, _ []string, s stdio) error {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			if err := inScratch(ctx, cfg, nothing); err != nil {
				return err
			}
			for _, w := range cfg.Warnings() {
				fmt.Fprintln(s.err, "warning:", visible(w.Error()))
			}
			for _, w := range cfg.Misspelled(os.Environ()) {
				fmt.Fprintln(s.err, "warning:", visible(w))
			}
			p := printer{w: s.out}
			p.printf("%s is right: %s\n", cfg.Name(), plural(int64(len(cfg.Consumers)), "consumer", "consumers"))
			for _, k := range cfg.Consumers {
				p.printf("  %s from stream %s\n", k.Name, k.Stream)
			}
			return p.err
		}),
	}
	c = configFlag(cmd)
	c.settingFlags(cmd)
	return cmd
}

// nothing is for inScratch when opening is all there is to do.
func nothing(*gateway.Gateway) error { return nil }

// inScratch opens a gateway as cfg says on a new database, for as long as fn
// runs.
func inScratch(ctx context.Context, cfg *config.Config, fn func(*gateway.Gateway) error) (err error) {
	dir, err := os.MkdirTemp("", "edge-consumer-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	scratch := *cfg
	scratch.Database.Path = filepath.Join(dir, "scratch.db")
	g, err := gateway.Open(ctx, &scratch, gateway.Options{Log: discard(), Lookup: os.LookupEnv})
	if err != nil {
		return configError(err)
	}
	defer func() {
		if e := g.Close(); err == nil {
			err = e
		}
	}()
	return fn(g)
}
