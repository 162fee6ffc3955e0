package inbox

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
)

// MaxPayload is the largest payload that is stored, in bytes. SQLite's own
// limit for a row is 1,000,000,000; a NATS server's is 64 MiB at most.
const MaxPayload = 256 << 20

// A Message is what a producer sent. Its identity is (Source, ID), for each
// consumer by itself: the same pair takes effect once.
type Message struct {
	// ID is the producer's, the same over all its retries. It must not be empty.
	ID string
	// Source scopes ID: two sources may use the same ID for different
	// messages. It may be empty when there is only one. A message that came
	// as a CloudEvent has its ce-source here.
	Source string

	Type    string // what kind of message, for people and filters
	Subject string // the NATS subject, or what corresponds to it
	Key     string // the ordering key; "" has no order to keep
	Headers Header
	Payload []byte

	// Set by the inbox for the handler; ignored on the way in.

	Seq        int64     // arrival number within this file
	Attempt    int       // 1 at the first attempt
	ReceivedAt time.Time // when the message was stored, by this machine's clock
	Stream     string    // the JetStream stream it came from, if any
	StreamSeq  uint64    // and its sequence there

	rule     rule      // which rule gave Source and ID; part of the identity
	invalid  string    // why no handler may see it: it is stored dead
	consumer string    // for IdempotencyKey
	pos      *position // where in its stream it stood
}

// Header holds a message's headers. It converts to and from nats.Header and
// http.Header. Names are compared as they are written.
type Header map[string][]string

// Get is the first value of the header called name, in any case of letters.
// A name written exactly so is preferred, then the first in byte order.
func (h Header) Get(name string) string {
	v, _ := h.lookup(name)
	return v
}

func (h Header) lookup(name string) (value string, found bool) {
	if v, ok := h[name]; ok && len(v) > 0 {
		return v[0], true
	}
	var best string
	for k, v := range h {
		// EqualFold alone also takes ſ for s, and the Kelvin sign for k.
		if len(v) > 0 && len(k) == len(name) && strings.EqualFold(k, name) && (!found || k < best) {
			best, value, found = k, v[0], true
		}
	}
	return value, found
}

// IdempotencyKey names the effect of m on the outside world: the same for
// every attempt and redelivery of the same message to the same consumer,
// different for any other. It is 64 hex digits, SHA-256 over the
// length-prefixed parts of the identity.
func (m *Message) IdempotencyKey() string {
	d := identityDigest(m.consumer, m.rule, m.Source, m.ID)
	return hex.EncodeToString(d[:])
}

// identityDigest is SHA-256 over the length-prefixed parts of an identity.
func identityDigest(consumer string, rule rule, source, id string) [sha256.Size]byte {
	var buf [256]byte
	b := buf[:0]
	for _, part := range [...]string{consumer, string(rune(rule)), source, id} {
		b = binary.BigEndian.AppendUint64(b, uint64(len(part)))
		b = append(b, part...)
	}
	return sha256.Sum256(b)
}

func (m *Message) validate() error {
	switch {
	case m.ID == "":
		return fmt.Errorf("%w: ID is empty: set Message.ID to the producer's id, the same over its retries", ErrInvalidMessage)
	case len(m.Payload) > MaxPayload:
		return fmt.Errorf("%w: %q: payload of %d bytes, the limit is %d", ErrInvalidMessage, m.ID, len(m.Payload), MaxPayload)
	}
	return nil
}

// size is what m weighs in a queue, in bytes.
func (m *Message) size() int {
	return len(m.Payload) + len(m.ID) + len(m.Subject) + 512
}

// contentHash tells two versions of a message apart. With canonical, JSON
// payloads that differ only in spelling (order of keys, white space, number
// format) are one version (RFC 8785); what is not such JSON is hashed as it is.
func contentHash(payload []byte, canonical bool) [sha256.Size]byte {
	if canonical {
		if c, err := canonicalJSON(payload); err == nil {
			return sha256.Sum256(c)
		}
	}
	return sha256.Sum256(payload)
}

// encodeHeaders writes h as "Name: value" lines, sorted by name, lossless:
// CR, LF, colon and percent in names, and all but colon in values, are
// percent-encoded.
func encodeHeaders(h Header) string {
	if len(h) == 0 {
		return ""
	}
	var few [8]string
	names, size := few[:0], 0
	for k, vs := range h {
		names = append(names, k)
		for _, v := range vs {
			size += len(k) + len(v) + 3
		}
	}
	slices.Sort(names)
	var b strings.Builder
	b.Grow(size)
	for _, k := range names {
		for _, v := range h[k] {
			escapeHeader(&b, k, "%\r\n:")
			b.WriteString(": ")
			escapeHeader(&b, v, "%\r\n")
			b.WriteByte('\n')
		}
	}
	return b.String()
}

func escapeHeader(b *strings.Builder, s, special string) {
	for {
		i := strings.IndexAny(s, special)
		if i < 0 {
			b.WriteString(s)
			return
		}
		b.WriteString(s[:i])
		const digits = "0123456789ABCDEF"
		b.Write([]byte{'%', digits[s[i]>>4], digits[s[i]&15]}) // fmt would move b, and each message's headers with it, to the heap
		s = s[i+1:]
	}
}

func decodeHeaders(s string) Header {
	if s == "" {
		return nil
	}
	h := Header{}
	for line := range strings.Lines(s) {
		k, v, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		k = percentDecode(k)
		h[k] = append(h[k], percentDecode(v))
	}
	return h
}

// percentDecode decodes %XX once; a percent sign that is not followed by two
// hex digits stays as it is.
func percentDecode(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if d, err := hex.DecodeString(s[i+1 : i+3]); err == nil {
				b = append(b, d[0])
				i += 2
				continue
			}
		}
		b = append(b, s[i])
	}
	return string(b)
}
