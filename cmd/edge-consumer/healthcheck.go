package main

import (
	"context"
	"strings"
	"time"

	"edge.example/inbox/cmd/edge-consumer/internal/web"
	"github.com/spf13/cobra"
)

const healthcheckHelp = `Ask the running edge-consumer whether it is alive, for containers that have no
shell and no curl. With --ready, ask whether database and broker can be used.

The exit status is 0 if it says yes, 1 if it says no, 3 if it does not answer.`

func newHealthcheck() *cobra.Command {
	var c *configuration
	var ready bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "healthcheck -c FILE",
		Short: "Ask the running edge-consumer whether it is well",
		Long:  healthcheckHelp,
		Example: `  edge-consumer healthcheck -c /etc/edge-consumer/edge.yaml
  edge-consumer healthcheck --ready`,
		Args: noArgs,
		RunE: action(func(ctx context.Context, _ []string, s stdio) error {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			path := "/healthz"
			if ready {
				path = "/readyz"
			}
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			code, body, err := web.Get(ctx, cfg.HTTP, path)
			switch {
			case err != nil:
				return err
			case code != 200:
				return exitf(exitNotHeld, "%s says %d: %s", path, code, strings.TrimSpace(body))
			}
			p := printer{w: s.out}
			p.printf("%s\n", strings.TrimSpace(body))
			return p.err
		}),
	}
	c = configFlag(cmd)
	cmd.Flags().BoolVar(&ready, "ready", false, "ask /readyz instead of /healthz")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "how long to wait for the answer")
	return cmd
}
