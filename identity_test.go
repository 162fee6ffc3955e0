package inbox

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// place is one in a stream, and placeID the identity that it gives.
var place = position{created: 1700000000123456789, seq: 42, from: 42, time: 1800000000987654321}

const (
	placeID = "1700000000123456789/42/1800000000987654321"
	// SHA-256 of "hello".
	helloHash = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
)

func TestIdentity_Rules(t *testing.T) {
	t.Parallel()
	all := Identity{Header: "X-Id", JSONPath: "$.order.id", Content: true}
	structured := func(contentType string, more ...string) Header {
		h := Header{"Content-Type": {contentType}}
		for i := 0; i < len(more); i += 2 {
			h[more[i]] = []string{more[i+1]}
		}
		return h
	}
	const ce = "application/cloudevents+json"
	for _, c := range []struct {
		name    string
		rules   Identity
		h       Header
		payload string

		rule       rule
		source, id string
		typ        string
		invalid    string // in the reason; the identity is then the last rule's
	}{
		// Each rule by itself.
		{name: "nothing", rule: ruleSequence, source: "S", id: placeID},
		{name: "headers that say nothing", h: Header{"a": {"b"}, "ID": {"x"}}, rule: ruleSequence, source: "S", id: placeID},
		{name: "configured header", rules: Identity{Header: "X-Id"}, h: Header{"X-Id": {"7"}}, rule: ruleHeader, source: "S", id: "7"},
		{name: "configured header, other case", rules: Identity{Header: "X-Id"}, h: Header{"x-iD": {"7"}}, rule: ruleHeader, source: "S", id: "7"},
		{name: "configured header is taken as it is", rules: Identity{Header: "X-Id"}, h: Header{"X-Id": {" %41\x00"}}, rule: ruleHeader, source: "S", id: " %41\x00"},
		{name: "CloudEvent", h: Header{"ce-source": {"/shop"}, "ce-id": {"1"}, "ce-type": {"t"}}, rule: ruleProducer, source: "/shop", id: "1", typ: "t"},
		{name: "CloudEvent without a type", h: Header{"ce-source": {"/shop"}, "ce-id": {"1"}}, rule: ruleProducer, source: "/shop", id: "1"},
		{name: "structured CloudEvent", h: structured(ce), payload: `{"id":"1","source":"/shop","type":"t"}`, rule: ruleProducer, source: "/shop", id: "1", typ: "t"},
		{name: "Nats-Msg-Id", h: Header{"Nats-Msg-Id": {"m"}}, rule: ruleMsgID, source: "S", id: "m"},
		{name: "JSONPath", rules: Identity{JSONPath: "$.order.id"}, payload: `{"order":{"id":"A-1"}}`, rule: ruleJSON, source: "S", id: "A-1"},
		{name: "content", rules: Identity{Content: true}, payload: "hello", rule: ruleContent, source: "S", id: helloHash},

		// Each before the next.
		{name: "header before CloudEvent", rules: all, h: Header{"X-Id": {"7"}, "ce-source": {"s"}, "ce-id": {"1"}, "ce-type": {"t"}}, rule: ruleHeader, source: "S", id: "7"},
		{name: "header before a structured CloudEvent, even a bad one", rules: all, h: structured(ce, "X-Id", "7"), payload: "{", rule: ruleHeader, source: "S", id: "7"},
		{name: "binary before structured", h: structured(ce, "ce-id", "b", "ce-source", "bs"), payload: `{"id":"1","source":"/shop"}`, rule: ruleProducer, source: "bs", id: "b"},
		{name: "CloudEvent before Nats-Msg-Id", rules: all, h: Header{"ce-source": {"s"}, "ce-id": {"1"}, "Nats-Msg-Id": {"m"}}, payload: `{"order":{"id":5}}`, rule: ruleProducer, source: "s", id: "1"},
		{name: "structured before Nats-Msg-Id", h: structured(ce, "Nats-Msg-Id", "m"), payload: `{"id":"1","source":"s"}`, rule: ruleProducer, source: "s", id: "1"},
		{name: "Nats-Msg-Id before JSONPath", rules: all, h: Header{"Nats-Msg-Id": {"m"}}, payload: `{"order":{"id":5}}`, rule: ruleMsgID, source: "S", id: "m"},
		{name: "Nats-Msg-Id before JSONPath, which is then not read", rules: all, h: Header{"Nats-Msg-Id": {"m"}}, payload: `no JSON`, rule: ruleMsgID, source: "S", id: "m"},
		{name: "JSONPath before content", rules: all, h: Header{"a": {"b"}}, payload: `{"order":{"id":5}}`, rule: ruleJSON, source: "S", id: "5"},
		{name: "content before the sequence", rules: Identity{JSONPath: "$.order.id", Content: true}, payload: `"hello"`, rule: ruleContent, source: "S", id: hexHash(`"hello"`)},
		{name: "a schedule, whatever else", rules: all, h: Header{"Nats-Scheduler": {"every-minute"}, "X-Id": {"7"}, "ce-source": {"s"}, "ce-id": {"1"}, "Nats-Msg-Id": {"m"}}, payload: `{"order":{"id":5}}`, rule: ruleSequence, source: "S", id: placeID},
		{name: "a schedule, other case, no value", h: Header{"nats-scheduler": {""}, "Nats-Msg-Id": {"m"}}, rule: ruleSequence, source: "S", id: placeID},
		{name: "a schedule and a bad CloudEvent", h: structured(ce, "Nats-Scheduler", "x"), payload: `{`, rule: ruleSequence, source: "S", id: placeID},

		// What is there but empty is not there.
		{name: "empty configured header", rules: all, h: Header{"X-Id": {""}, "Nats-Msg-Id": {"m"}}, rule: ruleMsgID, source: "S", id: "m"},
		{name: "configured header without values", rules: all, h: Header{"X-Id": {}, "Nats-Msg-Id": {"m"}}, rule: ruleMsgID, source: "S", id: "m"},
		{name: "ce-id without ce-source", h: Header{"ce-id": {"1"}, "Nats-Msg-Id": {"m"}}, rule: ruleMsgID, source: "S", id: "m"},
		{name: "ce-source without ce-id", h: Header{"ce-source": {"s"}, "ce-type": {"t"}}, rule: ruleSequence, source: "S", id: placeID},
		{name: "empty ce-id", h: Header{"ce-id": {""}, "ce-source": {"s"}}, rule: ruleSequence, source: "S", id: placeID},
		{name: "empty ce-source", h: Header{"ce-id": {"1"}, "ce-source": {""}}, rule: ruleSequence, source: "S", id: placeID},
		{name: "empty Nats-Msg-Id", h: Header{"Nats-Msg-Id": {""}}, rule: ruleSequence, source: "S", id: placeID},

		// Names of headers.
		{name: "any case", h: Header{"CE-SOURCE": {"s"}, "Ce-Id": {"1"}, "cE-tYPE": {"t"}}, rule: ruleProducer, source: "s", id: "1", typ: "t"},
		{name: "Nats-Msg-Id, lower case", h: Header{"nats-msg-id": {"m"}}, rule: ruleMsgID, source: "S", id: "m"},
		{name: "two that differ in case: the exact one", h: Header{"CE-ID": {"0"}, "ce-id": {"1"}, "Ce-Id": {"2"}, "ce-source": {"s"}}, rule: ruleProducer, source: "s", id: "1"},
		{name: "two that differ in case, none exact: the first in byte order", h: Header{"Ce-ID": {"2"}, "CE-id": {"1"}, "cE-id": {"3"}, "ce-source": {"s"}}, rule: ruleProducer, source: "s", id: "1"},
		{name: "several values: the first", h: Header{"Nats-Msg-Id": {"m", "n"}}, rule: ruleMsgID, source: "S", id: "m"},
		{name: "letters that only Unicode folds", h: Header{"ce-ſource": {"s"}, "ce-id": {"1"}, "Natſ-Msg-Id": {"m"}}, rule: ruleSequence, source: "S", id: placeID},
		{name: "a name with a space", h: Header{"ce-id ": {"1"}, "ce-source": {"s"}}, rule: ruleSequence, source: "S", id: placeID},

		// Percent-decoding: once, and only CloudEvents.
		{name: "percent", h: Header{"ce-source": {"%2Fa%20b"}, "ce-id": {"%E2%82%AC%22"}, "ce-type": {"t%41"}}, rule: ruleProducer, source: "/a b", id: `€"`, typ: "tA"},
		{name: "percent, once", h: Header{"ce-source": {"s"}, "ce-id": {"%2525"}}, rule: ruleProducer, source: "s", id: "%25"},
		{name: "percent, not an encoding", h: Header{"ce-source": {"100%"}, "ce-id": {"%4"}}, rule: ruleProducer, source: "100%", id: "%4"},
		{name: "percent, bytes", h: Header{"ce-source": {"%00"}, "ce-id": {"%ff"}}, rule: ruleProducer, source: "\x00", id: "\xff"},
		{name: "Nats-Msg-Id is not decoded", h: Header{"Nats-Msg-Id": {"%41"}}, rule: ruleMsgID, source: "S", id: "%41"},
		{name: "structured is not percent-decoded", h: structured(ce), payload: `{"id":"%41","source":"%42"}`, rule: ruleProducer, source: "%42", id: "%41"},

		// Structured CloudEvents.
		{name: "charset", h: structured("application/cloudevents+json; charset=utf-8"), payload: `{"id":"1","source":"s"}`, rule: ruleProducer, source: "s", id: "1"},
		{name: "upper case, header too", h: Header{"content-type": {"Application/CloudEvents+JSON;Charset=UTF-8"}}, payload: `{"id":"1","source":"s"}`, rule: ruleProducer, source: "s", id: "1"},
		{name: "escapes", h: structured(ce), payload: `{"\u0069d":"\u0041\ud83d\ude00","source":"\/"}`, rule: ruleProducer, source: "/", id: "A😀"},
		{name: "replacement character by itself", h: structured(ce), payload: `{"id":"\ufffd","source":"s"}`, rule: ruleProducer, source: "s", id: "\ufffd"},
		{name: "others names in other case are other names", h: structured(ce), payload: `{"ID":"2","id":"1","Id":"3","source":"s","SOURCE":5}`, rule: ruleProducer, source: "s", id: "1"},
		{name: "id in the data", h: structured(ce), payload: `{"data":{"id":"9","source":"x"},"id":"1","source":"s"}`, rule: ruleProducer, source: "s", id: "1"},
		{name: "null type", h: structured(ce), payload: `{"id":"1","source":"s","type":null}`, rule: ruleProducer, source: "s", id: "1"},
		{name: "no payload", h: structured(ce), invalid: "unexpected end of JSON"},
		{name: "no JSON", h: structured(ce, "Nats-Msg-Id", "m"), payload: `<xml/>`, invalid: "invalid character"},
		{name: "byte order mark", h: structured(ce), payload: "\ufeff" + `{"id":"1","source":"s"}`, invalid: "invalid character"},
		{name: "not UTF-8", h: structured(ce), payload: "{\"id\":\"1\",\"source\":\"s\",\"x\":\"\xff\"}", invalid: "not UTF-8"},
		{name: "an array", h: structured(ce), payload: `[{"id":"1","source":"s"}]`, invalid: "not a JSON object"},
		{name: "no id", h: structured(ce), payload: `{"source":"s"}`, invalid: "id is required"},
		{name: "empty id", h: structured(ce), payload: `{"id":"","source":"s"}`, invalid: "id is required"},
		{name: "null id", h: structured(ce), payload: `{"id":null,"source":"s"}`, invalid: "id is required"},
		{name: "no source", h: structured(ce), payload: `{"id":"1"}`, invalid: "source is required"},
		{name: "id in another case", h: structured(ce), payload: `{"ID":"1","source":"s"}`, invalid: "id is required"},
		{name: "id is a number", h: structured(ce), payload: `{"id":1,"source":"s"}`, invalid: "id is not a string"},
		{name: "type is an object", h: structured(ce), payload: `{"id":"1","source":"s","type":{}}`, invalid: "type is not a string"},
		{name: "two ids", h: structured(ce), payload: `{"id":"1","source":"s","\u0069d":"1"}`, invalid: "id occurs more than once"},
		{name: "half a surrogate pair", h: structured(ce), payload: `{"id":"\ud800","source":"s"}`, invalid: "lone surrogate"},
		{name: "batch", h: structured("application/cloudevents-batch+json", "Nats-Msg-Id", "m"), payload: `[]`, invalid: "cloudevents-batch+json"},
		{name: "another format", h: structured("application/cloudevents+avro"), payload: `{"id":"1","source":"s"}`, invalid: "only application/cloudevents+json"},
		{name: "a content type that cannot be read", h: structured("application/cloudevents+json; x"), payload: `{"id":"1","source":"s"}`, invalid: "content type"},
		{name: "plain JSON is no CloudEvent", h: structured("application/json"), payload: `{"id":"1","source":"s"}`, rule: ruleSequence, source: "S", id: placeID},

		// JSONPath.
		{name: "path to a number", rules: all, payload: `{"order":{"id":1.50}}`, rule: ruleJSON, source: "S", id: "1.50"},
		{name: "path to a large number", rules: all, payload: `{"order":{"id":12345678901234567890}}`, rule: ruleJSON, source: "S", id: "12345678901234567890"},
		{name: "path to the document", rules: Identity{JSONPath: "$"}, payload: ` "x" `, rule: ruleJSON, source: "S", id: "x"},
		{name: "path to nothing", rules: Identity{JSONPath: "$.order.id"}, payload: `{"order":[]}`, rule: ruleSequence, source: "S", id: placeID},
		{name: "path to null", rules: Identity{JSONPath: "$.order.id"}, payload: `{"order":{"id":null}}`, rule: ruleSequence, source: "S", id: placeID},
		{name: "path to an empty string", rules: all, payload: `{"order":{"id":""}}`, rule: ruleContent, source: "S", id: hexHash(`{"order":{"id":""}}`)},
		{name: "path to a boolean", rules: all, payload: `{"order":{"id":true}}`, invalid: "boolean"},
		{name: "path to an object", rules: all, payload: `{"order":{"id":{}}}`, invalid: "object"},
		{name: "path, no JSON", rules: all, payload: `hello`, invalid: "not valid JSON"},
		{name: "path, no payload", rules: all, invalid: "not valid JSON"},
		{name: "path, not UTF-8", rules: all, payload: "{\"order\":{\"id\":\"\xff\"}}", invalid: "not valid UTF-8"},
		{name: "path, two of the name", rules: all, payload: `{"order":{"id":1,"id":2}}`, invalid: "more than once"},

		{name: "content, no payload", rules: Identity{Content: true}, rule: ruleContent, source: "S", id: hexHash("")},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, c.rules.compile())
			pos := place
			m := Message{ID: "not me", Source: "nor me", Headers: c.h, Payload: []byte(c.payload), Stream: "S", pos: &pos}
			err := c.rules.identify(&m)
			if c.invalid != "" {
				require.ErrorIs(t, err, errInvalid)
				assert.ErrorContains(t, err, c.invalid)
				c.rule, c.source, c.id = ruleSequence, "S", placeID
			} else {
				require.NoError(t, err)
			}
			assert.Equal(t, c.rule, m.rule)
			assert.Equal(t, c.source, m.Source)
			assert.Equal(t, c.id, m.ID)
			assert.Equal(t, c.typ, m.Type)
			again := Message{Headers: c.h, Payload: []byte(c.payload), Stream: "S", pos: &pos}
			_ = c.rules.identify(&again)
			assert.Equal(t, identityOf(&m), identityOf(&again), "a redelivery has the same identity")
		})
	}
}

func TestIdentity_KeepsTheTypeItHas(t *testing.T) {
	t.Parallel()
	m := Message{Type: "given", Headers: Header{"ce-source": {"s"}, "ce-id": {"1"}, "ce-type": {"t"}}, pos: &position{}}
	require.NoError(t, (&Identity{}).identify(&m))
	assert.Equal(t, "given", m.Type)
}

// A sequence alone is reissued by a broker that lost power: every part counts.
func TestIdentity_SequenceParts(t *testing.T) {
	t.Parallel()
	seen := map[identityKey]string{}
	for name, change := range map[string]func(*Message){
		"nothing":     func(*Message) {},
		"stream":      func(m *Message) { m.Stream = "T" },
		"created":     func(m *Message) { m.pos.created++ },
		"sequence":    func(m *Message) { m.pos.seq++ },
		"time":        func(m *Message) { m.pos.time++ },
		"before 1970": func(m *Message) { m.pos.time = -m.pos.time },
		"most":        func(m *Message) { m.pos.seq = 1<<64 - 1 },
		"shift":       func(m *Message) { m.pos.created, m.pos.seq = m.pos.created/10, 942 },
	} {
		pos := place
		m := Message{Stream: "S", pos: &pos}
		change(&m)
		require.NoError(t, (&Identity{}).identify(&m))
		other, taken := seen[identityOf(&m)]
		assert.False(t, taken, "%s: the same as %s", name, other)
		seen[identityOf(&m)] = name
	}
}

func TestIdentity_BadPath(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"order.id", "$.", "$[", "$.a b", "$.*", "\xff"} {
		assert.ErrorContains(t, (&Identity{JSONPath: path}).compile(), "Identity.JSONPath", path)
	}
}

// Whatever a producer sends, its identity is found (or refused) in time that
// grows with its size and no faster: the subscriber can do nothing else
// meanwhile. What is quadratic in these would take hours.
func TestIdentity_Hostile(t *testing.T) {
	t.Parallel()
	const n = 100_000
	rules := Identity{Header: "X-Id", JSONPath: "$.a.a[#-1].a", Content: true}
	require.NoError(t, rules.compile())
	names := Header{}
	for i := range n {
		names[fmt.Sprintf("ce-id%d", i)] = []string{"x"}
	}
	for i := range 1 << 9 { // every spelling of one name
		name := []byte("nats-msg-id")
		for j, bit := 0, 0; j < len(name); j++ {
			if name[j] != '-' {
				if i>>bit&1 == 1 {
					name[j] -= 'a' - 'A'
				}
				bit++
			}
		}
		names[string(name)] = []string{fmt.Sprint(i)}
	}
	values := make([]string, n)
	ce := func(contentType string) Header { return Header{"Content-Type": {contentType}} }
	var params, pieces strings.Builder
	for i := range n / 3 {
		fmt.Fprintf(&params, ";p%d=x", i)
		fmt.Fprintf(&pieces, ";p*%d=x", i)
	}
	const json = "application/cloudevents+json"
	for name, m := range map[string]Message{
		"many headers":                {Headers: names},
		"many values":                 {Headers: Header{"X-Id": values, "ce-id": values, "Nats-Msg-Id": values}},
		"percent signs":               {Headers: Header{"ce-source": {strings.Repeat("%", n)}, "ce-id": {strings.Repeat("%zz%4", n)}}},
		"encoded":                     {Headers: Header{"ce-source": {strings.Repeat("%2", n)}, "ce-id": {strings.Repeat("%41", n)}}},
		"a long id":                   {Headers: Header{"Nats-Msg-Id": {strings.Repeat("x", 10*n)}}},
		"content type, parameters":    {Headers: ce(json + params.String())},
		"content type, one in pieces": {Headers: ce(json + pieces.String())},
		"content type, semicolons":    {Headers: ce(json + strings.Repeat(";", n))},
		"content type, quotes":        {Headers: ce(json + `; a="` + strings.Repeat(`\"`, n))},
		"content type, NUL":           {Headers: ce(json + strings.Repeat("\x00", n))},
		"brackets":                    {Headers: ce(json), Payload: []byte(strings.Repeat("[", n))},
		"objects":                     {Headers: ce(json), Payload: []byte(strings.Repeat(`{"id":`, n))},
		"nested, closed":              {Payload: []byte(`{"a":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `}`)},
		"path, nested":                {Payload: []byte(strings.Repeat(`{"a":`, 9000) + "1" + strings.Repeat("}", 9000))},
		"path, a long array":          {Payload: []byte(`{"a":{"a":[` + strings.Repeat("1,", n) + `{"a":"x"}]}}`)},
		"one name, many times":        {Headers: ce(json), Payload: []byte(`{` + strings.Repeat(`"id":"1",`, n) + `"source":"s"}`)},
		"many names":                  {Headers: ce(json), Payload: []byte(`{` + strings.Repeat(`"\u0069\u0064\u0064":"1",`, n) + `"id":"1","source":"s"}`)},
		"a long escaped string":       {Headers: ce(json), Payload: []byte(`{"id":"` + strings.Repeat(`\u0041`, n) + `","source":"s"}`)},
		"a long number":               {Headers: ce(json), Payload: []byte(`{"id":` + strings.Repeat("1", n) + `,"source":"s"}`)},
		"a long path number":          {Payload: []byte(`{"a":{"a":[{"a":` + strings.Repeat("1", n) + `}]}}`)},
		"white space":                 {Payload: []byte(strings.Repeat(" ", 10*n))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m.Stream, m.pos = "S", &position{}
			err := make(chan error, 1)
			go func() { err <- rules.identify(&m) }()
			select {
			case err := <-err:
				assert.NotEmpty(t, m.ID)
				if err != nil {
					assert.ErrorIs(t, err, errInvalid)
					assert.Less(t, len(err.Error()), 600, "a reason is short, and quotes little of what it is about")
				}
			case <-time.After(20 * time.Second):
				t.Fatal("it takes for ever")
			}
		})
	}
}

// An identityKey is what makes two messages of a consumer the same one.
type identityKey struct {
	rule       rule
	source, id string
}

func identityOf(m *Message) identityKey { return identityKey{m.rule, m.Source, m.ID} }

func hexHash(payload string) string {
	sum := contentHash([]byte(payload), false)
	return hex.EncodeToString(sum[:])
}

// A sent is a message as its producer meant it: by which rule it has a name,
// and the parts of that name.
type sent struct {
	how                byte
	stream, source, id string
	created, time      int64
	seq                uint64
}

// meant is the identity in the producer's words: what must differ when the
// producer meant two messages, and must not when it meant one.
type meant struct {
	how           string
	stream        string
	source, id    string
	created, time int64
	seq           uint64
}

// message builds what is delivered, the rules it is read by, and what was meant.
func (s sent) message() (Message, Identity, meant) {
	m := Message{Stream: s.stream, pos: &position{created: s.created, seq: s.seq, time: s.time}}
	bySeq := meant{how: "sequence", stream: s.stream, created: s.created, seq: s.seq, time: s.time}
	if s.id == "" && s.how%9 != 6 {
		s.how = 7
	}
	switch s.how % 9 {
	case 0: // binary CloudEvent
		if s.source == "" {
			return m, Identity{}, bySeq
		}
		m.Headers = Header{"Ce-Id": {percentEncode(s.id)}, "CE-source": {percentEncode(s.source)}, "Nats-Msg-Id": {"n"}}
		return m, Identity{}, meant{how: "producer", source: s.source, id: s.id}
	case 1: // structured CloudEvent
		if s.source == "" || !utf8.ValidString(s.source) || !utf8.ValidString(s.id) {
			return m, Identity{}, bySeq
		}
		m.Headers = Header{"content-type": {"application/cloudevents+json"}}
		m.Payload, _ = json.Marshal(map[string]any{"id": s.id, "source": s.source, "type": "t", "data": s.stream})
		return m, Identity{}, meant{how: "producer", source: s.source, id: s.id}
	case 2:
		m.Headers = Header{"Nats-Msg-Id": {s.id}, "ce-id": {s.source}}
		return m, Identity{}, meant{how: "msgid", stream: s.stream, id: s.id}
	case 3:
		m.Headers = Header{"x-id": {s.id}, "ce-id": {s.source}, "ce-source": {s.source}}
		return m, Identity{Header: "X-Id"}, meant{how: "header", stream: s.stream, id: s.id}
	case 4: // JSON, a string
		if !utf8.ValidString(s.id) || !utf8.ValidString(s.source) {
			return m, Identity{}, bySeq
		}
		m.Payload, _ = json.Marshal(map[string]any{"a": map[string]any{"id": s.id}, "id": s.source})
		return m, Identity{JSONPath: "$.a.id", Content: true}, meant{how: "json", stream: s.stream, id: s.id}
	case 5: // JSON, a number: an id is the same one with and without quotes
		m.Payload = fmt.Appendf(nil, `{"a": {"id": %d}}`, s.seq)
		return m, Identity{JSONPath: "$.a.id", Content: true}, meant{how: "json", stream: s.stream, id: fmt.Sprint(s.seq)}
	case 6:
		m.Payload = []byte(s.id)
		return m, Identity{Content: true}, meant{how: "content", stream: s.stream, id: s.id}
	case 7:
		return m, Identity{}, bySeq
	default: // a recurring schedule
		m.Headers = Header{"Nats-Scheduler": {s.id}, "Nats-Msg-Id": {s.id}, "ce-id": {s.id}, "ce-source": {s.source}}
		return m, Identity{Header: "ce-id", Content: true}, bySeq
	}
}

func percentEncode(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if s[i] == '%' || s[i] <= ' ' || s[i] >= 0x7f || s[i] == '"' || i%3 == 0 {
			fmt.Fprintf(&b, "%%%02x", s[i])
		} else {
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

// FuzzIdentity holds the rules to their promise: two messages have one
// identity if and only if their producers gave them one. (Two payloads with
// one SHA-256 would be a find.)
func FuzzIdentity(f *testing.F) {
	// same says which parts of b are those of a.
	for _, x := range []struct {
		a, b sent
		same byte
	}{
		{sent{how: 0, source: "a", id: "b/c"}, sent{how: 0, source: "a/b", id: "c"}, 0},
		{sent{how: 0, source: "a", id: "\x00b"}, sent{how: 1, source: "a\x00", id: "b"}, 0},
		{sent{how: 0, source: "a", id: "b"}, sent{how: 1}, 0xfe},
		{sent{how: 0, source: "S", id: "m"}, sent{how: 2, stream: "S", id: "m"}, 0},
		{sent{how: 0, source: "nats-msg-id:S", id: "m"}, sent{how: 2, stream: "S", id: "m"}, 0},
		{sent{how: 2, stream: "S", id: "m"}, sent{how: 3, stream: "S", id: "m"}, 0},
		{sent{how: 2, stream: "S", id: "m"}, sent{how: 4, stream: "S", id: "m"}, 0},
		{sent{how: 2, stream: "S", id: "m"}, sent{how: 2, stream: "Sm", id: ""}, 0},
		{sent{how: 2, stream: "S", id: "m"}, sent{how: 2, stream: "T", id: "m"}, 0},
		{sent{how: 3, stream: "S", id: "%41"}, sent{how: 3, stream: "S", id: "A"}, 0},
		{sent{how: 0, source: "%41", id: "%2541"}, sent{how: 0, source: "A", id: "%41"}, 0},
		{sent{how: 0, source: "%", id: "%%"}, sent{how: 0, source: "%25", id: "%"}, 0},
		{sent{how: 4, stream: "S", id: "5"}, sent{how: 5, stream: "S", id: "x", seq: 5}, 0},
		{sent{how: 6, stream: "S", id: "hello"}, sent{how: 2, stream: "S", id: helloHash}, 0},
		{sent{how: 6, stream: "S", id: "hello"}, sent{how: 4, stream: "S", id: helloHash}, 0},
		{sent{how: 7, stream: "S", created: 1, seq: 2, time: 3}, sent{how: 2, stream: "S", id: "1/2/3"}, 0},
		{sent{how: 7, stream: "S", created: 1, seq: 23, time: 4}, sent{how: 7, stream: "S", created: 12, seq: 3, time: 4}, 0},
		{sent{how: 7, stream: "S", created: 1, seq: 2, time: -3}, sent{how: 8, id: "x"}, 0xfa},
		{sent{how: 1, source: "s", id: "\ufffd"}, sent{how: 0, source: "s", id: "\xff"}, 0},
		{sent{how: 1, source: "S", id: "a"}, sent{how: 1, source: "s", id: "A"}, 0},
		{sent{how: 2, stream: "S", id: "m "}, sent{how: 2, stream: "S", id: "m\x00"}, 0},
	} {
		a, b := x.a, x.b
		f.Add(a.how, a.stream, a.source, a.id, a.created, a.seq, a.time, b.how, b.stream, b.source, b.id, b.created, b.seq, b.time, x.same)
	}
	f.Fuzz(func(t *testing.T, how byte, stream, source, id string, created int64, seq uint64, time int64,
		how2 byte, stream2, source2, id2 string, created2 int64, seq2 uint64, time2 int64, same byte) {
		a := sent{how, stream, source, id, created, time, seq}
		b := sent{how2, stream2, source2, id2, created2, time2, seq2}
		for i, copyPart := range []func(){
			func() { b.how = a.how }, func() { b.stream = a.stream }, func() { b.source = a.source }, func() { b.id = a.id },
			func() { b.created = a.created }, func() { b.seq = a.seq }, func() { b.time = a.time },
		} {
			if same>>i&1 == 1 {
				copyPart()
			}
		}
		find := func(s sent) (identityKey, meant) {
			m, rules, want := s.message()
			require.NoError(t, rules.compile())
			require.NoError(t, rules.identify(&m))
			require.NotEmpty(t, m.ID)
			return identityOf(&m), want
		}
		gotA, wantA := find(a)
		gotB, wantB := find(b)
		require.Equal(t, wantA == wantB, gotA == gotB, "%+v is %q\n%+v is %q", wantA, gotA, wantB, gotB)
	})
}

// FuzzIdempotencyKey: different keys for different parts, the same for the same.
func FuzzIdempotencyKey(f *testing.F) {
	f.Add("c", byte(0), "a", "b/c", "c", byte(0), "a/b", "c")
	f.Add("c", byte(0), "a", "bc", "c", byte(0), "ab", "c")
	f.Add("c", byte(0), "", "x", "", byte(0), "c", "x")
	f.Add("c", byte(1), "s", "x", "c", byte(2), "s", "x")
	f.Add("c", byte(1), "s", "x", "c", byte(1), "s", "x")
	f.Add("c\x00", byte(1), "s", "x", "c", byte(1), "\x00s", "x")
	f.Add("c", byte(1), "\xff", "x", "c", byte(1), "\xfe", "x")
	f.Add("c", byte(1), "s", "x\x00", "c", byte(1), "s", "x")
	f.Add("c", byte(1), "\x00\x00\x00\x00\x00\x00\x00\x01x", "", "c", byte(1), "", "\x00\x00\x00\x00\x00\x00\x00\x01x")
	f.Fuzz(func(t *testing.T, consumer string, r byte, source, id, consumer2 string, r2 byte, source2, id2 string) {
		a := Message{consumer: consumer, rule: ruleProducer + rule(r%6), Source: source, ID: id}
		b := Message{consumer: consumer2, rule: ruleProducer + rule(r2%6), Source: source2, ID: id2}
		same := consumer == consumer2 && identityOf(&a) == identityOf(&b)
		require.Equal(t, same, a.IdempotencyKey() == b.IdempotencyKey())
		b = Message{consumer: consumer, rule: a.rule, Source: source, ID: id,
			Attempt: 3, Seq: 9, Type: "t", Subject: "s", Key: "k", Payload: []byte("p"), StreamSeq: 7, Headers: Header{"a": {"b"}}}
		require.Equal(t, a.IdempotencyKey(), b.IdempotencyKey(), "nothing else counts")
	})
}

// Identities that look alike, down to the index in the file.
func TestIdentity_LookAlikesInTheFile(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 100_000)
	ids := []identityKey{
		{0, "a", "b/c"}, {0, "a/b", "c"}, {0, "a/", "b/c"},
		{0, "", "abc"}, {0, "a", "bc"}, {0, "ab", "c"}, {0, "abc", " "},
		{0, "s", "nul"}, {0, "s", "nul\x00"}, {0, "s", "nul\x00\x00"}, {0, "s\x00", "nul"}, {0, "s", "\x00nul"}, {0, "s", "\x00"}, {0, "s\x00nul", "\x00"},
		{0, "s", "case"}, {0, "s", "Case"}, {0, "S", "case"}, {0, "S", "CASE"},
		{0, "s", "space"}, {0, "s", "space "}, {0, "s", " space"}, {0, "s ", "space"}, {0, "s", "space\t"}, {0, "s", "space\n"}, {0, "s", "space\r\n"},
		{0, "s", "1"}, {0, "s", "01"}, {0, "s", "1.0"}, {0, "s", "1e0"}, {0, "s", "+1"}, {0, "s", " 1"}, {0, "1", "s"}, {0, "01", "s"}, {0, "1.0", "s"},
		{0, "s", "0"}, {0, "s", "-0"}, {0, "s", "0x0"}, {0, "s", "NULL"}, {0, "s", "null"}, {0, "NULL", "NULL"}, {0, "s", "x''"},
		{0, "s", "9223372036854775807"}, {0, "s", "9223372036854775808"}, {0, "s", "9223372036854775807.0"},
		{0, "s", "\xff"}, {0, "s", "\xfe"}, {0, "s", "\ufffd"}, {0, "s", "\xff\xff"}, {0, "\xff", "s"}, {0, "\xfe", "s"}, {0, "\ufffd", "s"},
		{0, "s", "\xed\xa0\x80"}, {0, "s", "\xed\xbf\xbf"}, {0, "s", "\xc0\x80"},
		{0, "s", "é"}, {0, "s", "e\u0301"}, {0, "s", "\ufeffbom"}, {0, "s", "bom"},
		{0, "s", "a%b"}, {0, "s", "a_b"}, {0, "s", "a'b"}, {0, "s", `a"b`}, {0, "s", "a*b"}, {0, "s", "?1"}, {0, "s", "a%25b"},
		{0, "s", long + "1"}, {0, "s", long + "2"}, {0, "s", long}, {0, long + "1", "s"}, {0, long + "2", "s"},
		{0, "s", "2030-01-02T03:04:05Z"}, {0, "s", "2030-01-02T03:04:05+00:00"}, {0, "s", "2030-01-02 03:04:05"},
	}
	// Each rule, and a producer's own source that reads as the view shows it.
	for r, name := range map[rule]string{
		ruleMsgID: "nats-msg-id:", ruleHeader: "header:", ruleJSON: "json:", ruleContent: "content:", ruleSequence: "sequence:",
	} {
		ids = append(ids, identityKey{r, "s", "1"}, identityKey{ruleProducer, name + "s", "1"})
	}
	l := newLab(t, nil)
	c := l.consumer("c", nil, nil)
	deliver := func(want Outcome) {
		t.Helper()
		ms := make([]Message, len(ids))
		for i, k := range ids {
			ms[i] = Message{Source: k.source, ID: k.id, rule: k.rule}
			if k.rule == 0 {
				ms[i].rule = ruleProducer
			}
		}
		release := l.hold()
		outs := make(chan Outcome, len(ms))
		for _, m := range ms {
			require.NoError(t, c.submit(ctxBG, m, func(o Outcome, err error) {
				assert.NoError(t, err)
				outs <- o
			}))
		}
		release()
		for i := range ms {
			assert.Equal(t, want, <-outs, "%.50q", ids[i])
		}
	}
	deliver(Applied)
	deliver(Duplicate)
	assert.Equal(t, len(ids), l.effects(""))
	l.close() // what the writer remembers is not what makes them the same
	l.open()
	c = l.consumer("c", nil, nil)
	deliver(Duplicate)
	assert.Equal(t, len(ids), l.effects(""))

	require.NoError(t, l.ib.View(ctxBG, func(ctx context.Context, rx *Rx) error {
		rows, err := rx.QueryContext(ctx, `SELECT s.name, m.message_id FROM inbox_message m JOIN inbox_name s ON s.id = m.source ORDER BY m.seq`)
		require.NoError(t, err)
		defer rows.Close()
		for _, k := range ids {
			require.True(t, rows.Next())
			var source, id string
			require.NoError(t, rows.Scan(&source, &id))
			assert.True(t, id == k.id, "%.50q came back as %.50q", k.id, id)
			assert.True(t, source == k.source, "%.50q came back as %.50q", k.source, source)
		}
		return rows.Err()
	}))
}
