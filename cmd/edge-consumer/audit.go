package main

import (
	"context"
	"os"
	"time"

	"edge.example/inbox/cmd/edge-consumer/internal/natsconn"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
)

const auditHelp = `Print the account of an inbox: for each consumer and each stream it met, the
sequences that the file answers for, what became of them, and what is missing.

A sequence is missing when later ones are accounted for and it is not. Without
the broker's word such a sequence may have been nobody's: filtered out, or not
delivered yet. With --live the live stream is asked, and what is still missing
then was acknowledged and is not in the file. Sequences are unexplained when
they are accounted for and no row or counter says what became of them.

The broker of --live is that of the configuration, else of the environment
(NATS_URL, NATS_CONTEXT); --nats and --context name another, and imply --live.

The file may be in use: the audit reads a consistent snapshot beside its owner.
The exit status is 1 if anything is missing or unexplained.`

func newAudit() *cobra.Command {
	var db *database
	var broker *brokerFlags
	var live, asJSON bool
	cmd := &cobra.Command{
		Use:   "audit --db FILE",
		Short: "Account for every sequence of every stream",
		Long:  auditHelp,
		Example: `  edge-consumer audit --db orders.db
  edge-consumer audit --db orders.db --nats nats://localhost:4222
  edge-consumer audit -c edge.yaml --live
  edge-consumer audit --db orders.db --json | jq '.streams[].missing'`,
		Args: noArgs,
		RunE: action(func(ctx context.Context, _ []string, s stdio) error {
			file, err := db.path()
			if err != nil {
				return err
			}
			var d *natsconn.Dialer
			if live || broker.given() {
				cfg, err := db.configured()
				if err != nil {
					return err
				}
				if d, err = broker.dialer(cfg, os.LookupEnv); err != nil {
					return err
				}
			}
			report, err := audit(ctx, file, d)
			switch {
			case err != nil:
				return err
			case asJSON:
				err = writeJSON(s.out, report)
			default:
				err = report.print(s.out)
			}
			if err != nil {
				return err
			}
			return report.verdict()
		}),
	}
	db = databaseFlag(cmd)
	broker = newBrokerFlags(cmd)
	f := cmd.Flags()
	f.BoolVar(&live, "live", false, "compare with the live streams of the broker")
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// auditConnect bounds connecting, to however many servers.
const auditConnect = 10 * time.Second

// audit reads the accounts in db and, if d is not nil, compares them with the
// broker's.
func audit(ctx context.Context, db string, d *natsconn.Dialer) (*auditReport, error) {
	ib, err := openGuest(ctx, db)
	if err != nil {
		return nil, err
	}
	defer ib.Close()
	audits, err := ib.Audit(ctx)
	if err != nil {
		return nil, err
	}
	r := &auditReport{Database: ib.Path(), Streams: []auditStream{}}
	var js jetstream.JetStream
	if d != nil {
		l, err := connectNow(ctx, d, "edge-consumer audit", auditConnect)
		if err != nil {
			return nil, err
		}
		defer l.close()
		js = l.js
	}
	for i := range audits {
		a := &audits[i]
		var err error
		if js != nil && a.Current {
			if err = a.Compare(ctx, js); ctx.Err() != nil {
				return nil, ctx.Err()
			}
		}
		r.add(a, js != nil && a.Current, err)
	}
	return r, nil
}
