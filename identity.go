package inbox

// Identity: who a message is. Producers name their messages in different
// ways; the rules below are tried in order and the first that applies
// decides. The rule is part of the identity, and so are the source and the
// id, each kept by itself: nothing is ever joined, so no two different
// messages can be spelled into the same identity.

import (
	"encoding/hex"
	"errors"
	"fmt"
	"mime"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A rule is the kind of a source in inbox_name: what gave a message its
// (source, id).
type rule int64

const (
	ruleProducer rule = 10 // the producer's own pair: CloudEvents, Process, Receive
	ruleMsgID    rule = 11 // Nats-Msg-Id, scoped to its stream
	ruleHeader   rule = 12 // a configured header, scoped to its stream
	ruleJSON     rule = 13 // a configured path into the payload, scoped to its stream
	ruleContent  rule = 14 // the content hash, scoped to its stream
	ruleSequence rule = 15 // stream + creation time + sequence + store timestamp
)

// Other kinds of names in inbox_name.
const (
	kindConsumer = 1
	kindType     = 2
	kindStream   = 3
)

// Identity says how messages from JetStream are told apart. The zero value
// takes what the producers already send. The rules, in order:
//
//  1. Header, if set and present on the message
//  2. CloudEvents: ce-source and ce-id (binary mode, names in any case,
//     values percent-decoded once, NATS Protocol Binding 1.0.2 section 3.1),
//     or the members source and id (structured JSON mode)
//  3. Nats-Msg-Id
//  4. JSONPath, if set and present in the payload
//  5. Content, if set
//  6. the stream, its creation time, the sequence and the store timestamp:
//     a redelivery is recognised, but a producer that publishes twice is not
//
// A message made by a recurring schedule (it has a Nats-Scheduler header)
// goes straight to rule 6: a schedule repeats the same headers every time.
//
// Rules 1 and 3 to 6 are scoped to the stream, by its name.
type Identity struct {
	// Header names the header that holds the producer's id.
	Header string
	// JSONPath leads to the producer's id in a JSON payload, a string or a
	// number, in the syntax of SQLite's JSON functions: $.order.id
	JSONPath string
	// Content takes the hash of the payload as the id. Two honest messages
	// with equal payloads are then one: only for data where that is so.
	Content bool

	path jsonPath
}

// errInvalid marks a message that claims an identity it does not have: it is
// stored dead with the reason, under rule 6.
var errInvalid = errors.New("invalid")

func (r *Identity) compile() (err error) {
	if r.JSONPath != "" {
		if r.path, err = parseJSONPath(r.JSONPath); err != nil {
			return fmt.Errorf("inbox: identity.json (Identity.JSONPath in Go): %w", err)
		}
	}
	return nil
}

// A position is where a delivery stood in its stream.
type position struct {
	acct    *account
	created int64  // the stream's creation, ns since 1970
	seq     uint64 // stream sequence
	from    uint64 // the sequences from..seq-1 were never ours; == seq when not known
	time    int64  // when the broker stored it, ns since 1970
}

// identify sets m.rule, m.Source and m.ID. An error (it is errInvalid) has
// set them by the last rule and says why the message itself is unusable.
func (r *Identity) identify(m *Message) error {
	err := r.try(m)
	if err != nil || m.ID == "" {
		m.rule, m.Source = ruleSequence, m.Stream
		b := make([]byte, 0, 64)
		b = strconv.AppendInt(b, m.pos.created, 10)
		b = append(b, '/')
		b = strconv.AppendUint(b, m.pos.seq, 10)
		b = append(b, '/')
		b = strconv.AppendInt(b, m.pos.time, 10)
		m.ID = string(b)
	}
	return err
}

// try applies rules 1 to 5; m.ID stays empty when none of them fits.
func (r *Identity) try(m *Message) error {
	m.ID, m.Source = "", ""
	if len(m.Headers) > 0 {
		if _, ok := m.Headers.lookup("Nats-Scheduler"); ok {
			return nil
		}
		if r.Header != "" {
			if v := m.Headers.Get(r.Header); v != "" {
				m.rule, m.Source, m.ID = ruleHeader, m.Stream, v
				return nil
			}
		}
		if done, err := cloudEvent(m); done || err != nil {
			return err
		}
		if v := m.Headers.Get("Nats-Msg-Id"); v != "" {
			m.rule, m.Source, m.ID = ruleMsgID, m.Stream, v
			return nil
		}
	}
	if r.JSONPath != "" {
		v, err := r.path.lookup(m.Payload)
		switch {
		case err == nil && v != "":
			m.rule, m.Source, m.ID = ruleJSON, m.Stream, v
			return nil
		case err != nil && !errors.Is(err, errPathAbsent):
			return fmt.Errorf("%w: no identity at %s: %w", errInvalid, r.JSONPath, err)
		}
	}
	if r.Content {
		sum := contentHash(m.Payload, false)
		m.rule, m.Source, m.ID = ruleContent, m.Stream, hex.EncodeToString(sum[:])
	}
	return nil
}

// cloudEvent takes the identity of a CloudEvent, and its type and subject.
func cloudEvent(m *Message) (found bool, err error) {
	id, hasID := m.Headers.lookup("ce-id")
	source, hasSource := m.Headers.lookup("ce-source")
	if hasID && hasSource && id != "" && source != "" {
		m.rule, m.Source, m.ID = ruleProducer, percentDecode(source), percentDecode(id)
		if m.Type == "" {
			m.Type = percentDecode(m.Headers.Get("ce-type"))
		}
		return true, nil
	}
	contentType := m.Headers.Get("Content-Type")
	if !strings.HasPrefix(strings.ToLower(contentType), "application/cloudevents") {
		return false, nil
	}
	if t, _, err := mime.ParseMediaType(contentType); err != nil || t != "application/cloudevents+json" {
		return false, fmt.Errorf("%w: CloudEvent with content type %.100q: only application/cloudevents+json is read", errInvalid, contentType)
	}
	event, err := structuredEvent(m.Payload)
	if err != nil {
		return false, fmt.Errorf("%w: structured CloudEvent: %w", errInvalid, err)
	}
	m.rule, m.Source, m.ID = ruleProducer, event.source, event.id
	if m.Type == "" {
		m.Type = event.typ
	}
	return true, nil
}

// eventNames are the attributes of a CloudEvent that the inbox reads.
type eventNames struct{ id, source, typ string }

// structuredEvent reads a CloudEvent in JSON. It does not use json.Unmarshal,
// which takes other spellings of a name, the last of several, and U+FFFD for
// half a surrogate pair: it would give different events one identity.
func structuredEvent(doc []byte) (e eventNames, err error) {
	if !utf8.Valid(doc) {
		return e, errors.New("the payload is not UTF-8")
	}
	if err := checkJSON(doc); err != nil {
		return e, err
	}
	c := jsonCursor{src: doc}
	if c.token() != '{' {
		return e, errors.New("the payload is not a JSON object")
	}
	type attribute struct {
		name     string
		to       *string
		required bool
		raw      []byte
	}
	attributes := [...]attribute{{name: "id", to: &e.id, required: true}, {name: "source", to: &e.source, required: true}, {name: "type", to: &e.typ}}
	isName, at := true, -1
	for item := range jsonItems(doc[c.pos:]) {
		switch {
		case isName:
			at = slices.IndexFunc(attributes[:], func(a attribute) bool { return nameEquals(item, a.name) })
		case at < 0:
		case attributes[at].raw != nil:
			return e, fmt.Errorf("%s occurs more than once", attributes[at].name)
		default:
			attributes[at].raw = item
		}
		isName = !isName
	}
	for _, a := range attributes {
		switch {
		case a.raw == nil || a.raw[0] == 'n':
		case a.raw[0] != '"':
			return e, fmt.Errorf("%s is not a string", a.name)
		default:
			if *a.to, err = decodeJSONString(a.raw); err != nil {
				return e, fmt.Errorf("%s: %w", a.name, err)
			}
		}
		if a.required && *a.to == "" {
			return e, fmt.Errorf("%s is required (CloudEvents 1.0, section 3.1)", a.name)
		}
	}
	return e, nil
}
