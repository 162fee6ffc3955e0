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

// stream examines the stream of a consumer, once for each stream. It returns
// nil if the stream is not there.
func (x *examination) stream(ctx context.Context, l *link, k *config.Consumer, t *clockReading) *jetstream.StreamInfo {
	check := "stream " + k.Stream
	ctx, cancel := context.WithTimeout(ctx, x.limit)
	defer cancel()
	before := x.now()
	s, err := l.js.Stream(ctx, k.Stream)
	after := x.now()
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound) && k.CreateStream != nil:
		x.add(levelWarning, check, "it is not there", "start edge-consumer run: it makes the stream, as create_stream says")
		return nil
	case errors.Is(err, jetstream.ErrStreamNotFound):
		x.add(levelCritical, check, "it is not there", "make it (nats stream add "+k.Stream+"), or let run make it with create_stream")
		return nil
	case noJetStream(err):
		x.add(levelCritical, check, oneLine(l.explain(err, "")), "enable JetStream on the server and for the account, or set nats.domain or nats.api_prefix; behind a leaf node it may only be away")
		return nil
	case err != nil:
		x.add(levelWarning, check, "could not be examined: "+oneLine(l.explain(err, "$JS.API.STREAM.INFO."+k.Stream)), "allow this user to ask, or try again with a longer --timeout")
		return nil
	}
	info := s.CachedInfo()
	*t = clockReading{before, after, info.TimeStamp}
	risks := streamRisks(info)
	for _, risk := range risks {
		x.add(levelWarning, check, risk.text, risk.remedy)
	}
	if len(risks) == 0 {
		x.add(levelOK, check, fmt.Sprintf("%s, %v, subjects %s", plural(int64(info.State.Msgs), "message", "messages"), config.Size(info.State.Bytes), strings.Join(info.Config.Subjects, " ")), "")
	}
	return info
}

// offlineFor is how long a consumer may be away before a stream may drop what
// it has not seen: over a weekend, say.
const offlineFor = 3 * 24 * time.Hour

// A risk is a limit by which a stream may drop a message before a consumer
// that was away has seen it.
type risk struct{ text, remedy string }

// streamRisks finds them. What a full stream drops is no risk as long as it
// keeps messages for longer than anybody is away.
func streamRisks(info *jetstream.StreamInfo) (risks []risk) {
	c, state := &info.Config, &info.State
	edit := "nats stream edit " + c.Name
	if c.MaxAge > 0 && c.MaxAge < offlineFor {
		risks = append(risks, risk{
			fmt.Sprintf("max_age is %v: what a consumer does not see for longer is dropped", c.MaxAge),
			"keep messages for 3 days or more: " + edit + " --max-age 3d"})
	}
	if c.Discard != jetstream.DiscardOld {
		return risks
	}
	kept := state.LastTime.Sub(state.FirstTime)
	full := func(used, most int64) bool { return most > 0 && used >= most-most/10 && kept < offlineFor }
	if full(int64(state.Bytes), c.MaxBytes) {
		risks = append(risks, risk{
			fmt.Sprintf("%v of max_bytes %v are used by the messages of %s: the oldest are dropped next", config.Size(state.Bytes), config.Size(c.MaxBytes), age(kept)),
			"raise it: " + edit + " --max-bytes, or --discard new to refuse new messages instead"})
	}
	if full(int64(state.Msgs), c.MaxMsgs) {
		risks = append(risks, risk{
			fmt.Sprintf("%s of max_msgs %s are used by the messages of %s: the oldest are dropped next", comma(state.Msgs), comma(c.MaxMsgs), age(kept)),
			"raise it: " + edit + " --max-msgs, or --discard new to refuse new messages instead"})
	}
	if c.MaxMsgsPerSubject > 0 {
		risks = append(risks, risk{
			fmt.Sprintf("max_msgs_per_subject is %s: of a subject only the last are kept for a consumer that is away", comma(c.MaxMsgsPerSubject)),
			"lift it, unless only the last message counts: " + edit + " --max-msgs-per-subject=-1"})
	}
	return risks
}

// subjects examines whether the stream has what the consumer asks for. A
// stream that copies others takes its subjects from them.
func (x *examination) subjects(k *config.Consumer, info *jetstream.StreamInfo) {
	check := "subjects of " + k.Name
	has := info.Config.Subjects
	if info.Config.Mirror != nil || len(info.Config.Sources) > 0 {
		return
	}
	var dead []string
	for _, want := range k.Subjects {
		if !slices.ContainsFunc(has, func(s string) bool { return overlap(s, want) }) {
			dead = append(dead, want)
		}
	}
	remedy := "mend the consumer's subjects, or add them to the stream: nats stream edit " + k.Stream
	switch {
	case len(dead) > 0 && len(dead) == len(k.Subjects):
		x.add(levelCritical, check, fmt.Sprintf("stream %s has %s: no message will ever match %s", k.Stream, strings.Join(has, " "), strings.Join(dead, " ")), remedy)
	case len(dead) > 0:
		x.add(levelWarning, check, fmt.Sprintf("stream %s has %s: no message will ever match %s", k.Stream, strings.Join(has, " "), strings.Join(dead, " ")), remedy)
	case len(k.Subjects) > 0:
		x.add(levelOK, check, fmt.Sprintf("%s are in the stream", strings.Join(k.Subjects, " ")), "")
	}
	if k.CreateStream == nil {
		return
	}
	var lacking []string
	for _, want := range k.CreateStream.Subjects {
		if !slices.ContainsFunc(has, func(s string) bool { return covers(s, want) }) {
			lacking = append(lacking, want)
		}
	}
	if len(lacking) > 0 {
		x.add(levelWarning, check, fmt.Sprintf("create_stream has %s, stream %s does not: it was there before and stays as it is", strings.Join(lacking, " "), k.Stream),
			"add them: nats stream edit "+k.Stream)
	}
}

// overlap reports whether there is a subject that both patterns match.
func overlap(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(as), len(bs)) {
		switch {
		case as[i] == ">" || bs[i] == ">":
			return true
		case as[i] != bs[i] && as[i] != "*" && bs[i] != "*":
			return false
		}
	}
	return len(as) == len(bs)
}

// covers reports whether pattern a matches all that pattern b does.
func covers(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range as {
		switch {
		case i == len(bs):
			return false
		case as[i] == ">":
			return true
		case bs[i] == ">", as[i] != "*" && as[i] != bs[i]:
			return false
		}
	}
	return len(as) == len(bs)
}
