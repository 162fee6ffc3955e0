package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"edge.example/inbox/cmd/edge-consumer/internal/config"
	"github.com/nats-io/nats.go/jetstream"
)

// consumer examines the durable consumer of a consumer.
func (x *examination) consumer(ctx context.Context, l *link, k *config.Consumer) {
	check, name := "consumer "+k.Name, durableName(k)
	ctx, cancel := context.WithTimeout(ctx, x.limit)
	defer cancel()
	c, err := l.js.Consumer(ctx, k.Stream, name)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		x.add(levelWarning, check, fmt.Sprintf("durable %s is not there", name), "start edge-consumer run: it makes it, or puts it back where it must be")
		return
	case errors.Is(err, jetstream.ErrNotPullConsumer):
		x.add(levelCritical, check, fmt.Sprintf("durable %s is a push consumer: run refuses it", name), unfitRemedy(k))
		return
	case err != nil:
		x.add(levelWarning, check, "could not be examined: "+oneLine(l.explain(err, "$JS.API.CONSUMER.INFO."+k.Stream+"."+name)), "allow this user to ask, or try again with a longer --timeout")
		return
	}
	info := c.CachedInfo()
	if policy := info.Config.AckPolicy; policy != jetstream.AckExplicitPolicy {
		x.add(levelCritical, check, fmt.Sprintf("durable %s has the acknowledgement policy %v: run refuses it, messages would be lost", name, policy), unfitRemedy(k))
		return
	}
	text := fmt.Sprintf("durable %s of stream %s is as it must be", name, k.Stream)
	if changes := inLine(k, &info.Config); len(changes) > 0 {
		text = fmt.Sprintf("durable %s of stream %s; run brings into line: %s", name, k.Stream, strings.Join(changes, ", "))
	}
	x.add(levelOK, check, text, "")
	x.lag(k, info)
}

func unfitRemedy(k *config.Consumer) string {
	return fmt.Sprintf("delete it (nats consumer rm %s %s): run makes a proper one; or name another durable in the configuration", k.Stream, durableName(k))
}

// lag examines what waits on the broker.
func (x *examination) lag(k *config.Consumer, info *jetstream.ConsumerInfo) {
	check := "lag of " + k.Name
	text := fmt.Sprintf("%s not delivered yet, %s not acknowledged yet", comma(info.NumPending), comma(info.NumAckPending))
	if most := info.Config.MaxAckPending; most > 0 && info.NumAckPending >= most {
		x.add(levelWarning, check, fmt.Sprintf("%s: that is max_ack_pending, the broker delivers no more", text), "see whether something else uses the durable consumer, and the daemon's log")
		return
	}
	x.add(levelOK, check, text, "")
}

// Defaults of the library, for what a configuration leaves out.
const (
	defaultAckWait  = 30 * time.Second
	defaultPrefetch = 8192
)

// inLine says what the library changes of a durable consumer before it
// consumes: see inLine in bind.go.
func inLine(k *config.Consumer, c *jetstream.ConsumerConfig) (changes []string) {
	change := func(what string, have, want any) {
		changes = append(changes, fmt.Sprintf("%s %v to %v", what, have, want))
	}
	wait := time.Duration(k.AckWait)
	if wait == 0 {
		wait = defaultAckWait
	}
	prefetch := k.Prefetch
	if prefetch == 0 {
		prefetch = defaultPrefetch
	}
	if len(c.BackOff) > 0 {
		change("backoff", c.BackOff, "none")
	}
	if c.AckWait != wait {
		change("ack_wait", c.AckWait, wait)
	}
	if c.MaxDeliver != -1 {
		change("max_deliver", c.MaxDeliver, -1)
	}
	if c.InactiveThreshold != 0 {
		change("inactive_threshold", c.InactiveThreshold, "none")
	}
	if c.HeadersOnly {
		change("headers_only", true, false)
	}
	if most := 2*prefetch + 1000; c.MaxAckPending >= 0 && c.MaxAckPending < most {
		change("max_ack_pending", c.MaxAckPending, fmt.Sprintf("%d, if the server allows it", most))
	}
	have := c.FilterSubjects
	if c.FilterSubject != "" {
		have = []string{c.FilterSubject}
	}
	if !slices.Equal(slices.Sorted(slices.Values(have)), slices.Sorted(slices.Values(k.Subjects))) {
		change("filter", subjectList(have), subjectList(k.Subjects))
	}
	return changes
}

// subjectList is a filter for people.
func subjectList(subjects []string) string {
	if len(subjects) == 0 {
		return "all"
	}
	return strings.Join(subjects, " ")
}
