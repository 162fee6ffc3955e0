package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"edge.example/inbox"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
)

const auditHelp = `Print the account of an inbox: for each consumer and each stream it met, the
sequences that the file answers for, what became of them, and what is missing.

A sequence is missing when later ones are accounted for and it is not. Without
the broker's word such a sequence may have been nobody's: filtered out, or not
delivered yet. With --nats the live stream is asked, and what is still missing
then was acknowledged and is not in the file. Sequences are unexplained when
they are accounted for and no row or counter says what became of them.

The file may be in use: the audit reads a consistent snapshot beside its owner.
The exit status is 1 if anything is missing or unexplained.`

func newAudit() *cobra.Command {
	var natsURL string
	var db *database
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "audit --db FILE",
		Short: "Account for every sequence of every stream",
		Long:  auditHelp,
		Example: `  edge-consumer audit --db orders.db
  edge-consumer audit --db orders.db --nats nats://localhost:4222
  edge-consumer audit --db orders.db --json | jq '.streams[].missing'`,
		Args: noArgs,
		RunE: action(func(ctx context.Context, _ []string, s stdio) error {
			file, err := db.path()
			if err != nil {
				return err
			}
			report, err := audit(ctx, file, natsURL)
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
	f := cmd.Flags()
	f.StringVar(&natsURL, "nats", "", "compare with the live streams of this NATS server")
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// audit reads the accounts in db and, if natsURL is given, compares them with
// the broker's.
func audit(ctx context.Context, db, natsURL string) (*auditReport, error) {
	ib, err := inbox.Open(ctx, db, &inbox.Options{Guest: true})
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
	if natsURL != "" {
		nc, err := connect(natsURL)
		if err != nil {
			return nil, err
		}
		defer nc.Close()
		if js, err = jetstream.New(nc); err != nil {
			return nil, err
		}
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

// connectTimeout bounds the wait for one server of the URL.
const connectTimeout = 4 * time.Second

// connect connects to the broker now or not at all. Its errors do not hold
// the URL's password.
func connect(natsURL string) (*nats.Conn, error) {
	nc, err := nats.Connect(natsURL, nats.Name("edge-consumer audit"), nats.Timeout(connectTimeout))
	if err == nil {
		return nc, nil
	}
	var bad *url.Error
	if errors.As(err, &bad) {
		return nil, exitf(exitUsage, "--nats is not a URL: %w", bad.Err)
	}
	var servers []string
	for server := range strings.SplitSeq(natsURL, ",") {
		if u, e := url.Parse(strings.TrimSpace(server)); e == nil {
			server = u.Redacted()
		}
		servers = append(servers, server)
	}
	return nil, fmt.Errorf("the broker cannot be reached at %s: %w", strings.Join(servers, ","), err)
}
