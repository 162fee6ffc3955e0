package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// broker examines what the broker has for us.
func (x *examination) broker(ctx context.Context) {
	const check, clock = "broker", "clock"
	servers := strings.Join(x.dialer.Servers(), ",")
	l, err := connectNow(ctx, x.dialer, "edge-consumer doctor", x.limit)
	switch {
	case err != nil && denied(err):
		x.add(levelCritical, check, oneLine(err), "mend nats: in the configuration, or the user's rights on the broker")
	case err != nil:
		x.add(levelWarning, check, oneLine(err), "nothing, if the network is away: messages wait there; otherwise see nats.url")
	default:
		x.add(levelOK, check, fmt.Sprintf("connected to %s, nats-server %s", servers, l.nc.ConnectedServerVersion()), "")
	}
	if err != nil {
		x.add(levelSkipped, clock, "the broker cannot be asked", "")
		for i := range x.cfg.Consumers {
			x.add(levelSkipped, "consumer "+x.cfg.Consumers[i].Name, "the broker cannot be asked", "")
		}
		return
	}
	defer l.close()

	seen := map[string]*jetstream.StreamInfo{} // nil: it is not there
	var t clockReading
	for i := range x.cfg.Consumers {
		k := &x.cfg.Consumers[i]
		info, asked := seen[k.Stream]
		if !asked {
			info = x.stream(ctx, l, k, &t)
			seen[k.Stream] = info
		}
		if info == nil {
			x.add(levelSkipped, "consumer "+k.Name, "see stream "+k.Stream+" first", "")
			continue
		}
		x.subjects(k, info)
		x.consumer(ctx, l, k)
	}
	x.clock(&t)
}

// denied reports whether waiting does not help: somebody must mend something.
func denied(err error) bool {
	for _, refusal := range []error{
		nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired,
		nats.ErrSecureConnRequired, nats.ErrSecureConnWanted, nats.ErrNkeysNotSupported,
	} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	var cert *tls.CertificateVerificationError
	var alert tls.AlertError
	return errors.As(err, &cert) || errors.As(err, &alert)
}

// A clockReading is one look at the broker's clock, which every answer about a
// stream holds. Zero: there was none.
type clockReading struct {
	before, after, server time.Time
}

// offset is how far our clock is ahead of the broker's, and by how much that
// may be wrong: the answer may have been made anywhere between the two.
func (t *clockReading) offset() (ahead, unsure time.Duration) {
	unsure = t.after.Sub(t.before) / 2
	return t.before.Add(unsure).Sub(t.server), unsure
}

// clockLimit is how far apart the clocks may be.
const clockLimit = 5 * time.Second

// clock compares the clocks. Nothing depends on it but what people read: ages,
// and times in the file.
func (x *examination) clock(t *clockReading) {
	const check = "clock"
	if t.server.IsZero() {
		x.add(levelSkipped, check, "no stream could be asked for the time", "")
		return
	}
	ahead, unsure := t.offset()
	apart, word := ahead, "ahead of"
	if ahead < 0 {
		apart, word = -ahead, "behind"
	}
	text := fmt.Sprintf("%v %s the broker's, to within %v", apart.Round(time.Millisecond), word, unsure.Round(time.Millisecond))
	if apart-unsure > clockLimit {
		x.add(levelWarning, check, text, "set the clock, and see that NTP keeps it; consuming does not depend on it")
		return
	}
	x.add(levelOK, check, text, "")
}
