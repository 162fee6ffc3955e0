package inbox

import (
	"context"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestMessage_HeaderGet(t *testing.T) {
	t.Parallel()
	h := Header{
		"Lang": {"de", "en"}, "lAng": {"fr"}, "LANG": {}, "empty": {""}, "none": nil,
		"Exact": {"1"}, "exact": {"2"}, "EXACT": {"3"}, "": {"nameless"}, "Ärger": {"umlaut"}, "kelvins": {"k"}, "x-y": {"dash"},
	}
	for name, want := range map[string]string{
		"Lang": "de", "lAng": "fr",
		"lang":  "de", // none is written so: Lang is before lAng
		"LANG":  "de", // it is there, but holds nothing
		"Exact": "1", "exact": "2", "EXACT": "3", "eXACT": "3",
		"empty": "", "Empty": "", "none": "", "missing": "", "": "nameless",
		"ärger":   "umlaut",                               // other letters have cases too
		"KELVINS": "k", "\u212aelvins": "", "kelvinſ": "", // but these are other letters
		"x_y": "", "x-y ": "", "X-Y": "dash",
	} {
		assert.Equal(t, want, h.Get(name), "%q", name)
	}
	for name, want := range map[string]bool{"empty": true, "EMPTY": true, "none": false, "LANG": true, "missing": false, "": true} {
		_, found := h.lookup(name)
		assert.Equal(t, want, found, "%q", name)
	}
	assert.Empty(t, Header(nil).Get("x"))
	assert.Equal(t, "v", Header(nats.Header{"K": {"v"}}).Get("k"))
	assert.Equal(t, "v", Header(http.Header{"K": {"v"}}).Get("k"))
	assert.Equal(t, "v", http.Header(Header{"K": {"v"}}).Get("k"))
}

func TestMessage_EncodeHeaders(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		h    Header
		text string
	}{
		{nil, ""},
		{Header{}, ""},
		{Header{"b": {"2"}, "a": {"1", "3", "2"}, "B": {""}}, "B: \na: 1\na: 3\na: 2\nb: 2\n"},
		{Header{"a:b": {"c:d: e"}}, "a%3Ab: c:d: e\n"},
		{Header{"a": {"x\r\nb: y"}}, "a: x%0D%0Ab: y\n"},
		{Header{"a\nb": {"%0A"}}, "a%0Ab: %250A\n"},
		{Header{"": {""}}, ": \n"},
		{Header{"Grüße": {"\x00\xff"}}, "Grüße: \x00\xff\n"},
	} {
		text := encodeHeaders(c.h)
		assert.Equal(t, c.text, text)
		if len(c.h) > 0 {
			assert.Equal(t, c.h, decodeHeaders(text))
		} else {
			assert.Nil(t, decodeHeaders(text))
		}
	}
}

// Whatever the headers are, they are the same when they come out of the file.
func TestMessage_HeaderRoundTrip(t *testing.T) {
	t.Parallel()
	part := rapid.OneOf(
		rapid.StringOfN(rapid.SampledFrom([]rune("aA:% \r\n04\x00,;=\"é")), 0, 8, -1),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 6), func(b []byte) string { return string(b) }),
	)
	headers := rapid.MapOfN(part, rapid.SliceOfN(part, 1, 3), 0, 5)
	rapid.Check(t, func(t *rapid.T) {
		h := Header(headers.Draw(t, "headers"))
		text := encodeHeaders(h)
		got := decodeHeaders(text)
		if len(h) == 0 {
			got = Header{}
		}
		require.Equal(t, h, got)
		require.Equal(t, text, encodeHeaders(decodeHeaders(text)), "one form")
		lines := 0
		for _, values := range h {
			lines += len(values)
		}
		require.Equal(t, lines, strings.Count(text, "\n"), "a line each")
	})
}

// FuzzDecodeHeaders: a file that was tampered with makes no panic.
func FuzzDecodeHeaders(f *testing.F) {
	for _, s := range []string{"", "a", "\n", "a: b", "a: b\n", ":", ": ", "%", "a: %4", "%41%: %zz\n\n: ", "\r\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		h := decodeHeaders(s)
		if len(h) > 0 {
			require.Equal(t, h, decodeHeaders(encodeHeaders(h)))
		}
	})
}

func TestMessage_PercentDecode(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"": "", "plain": "plain", "%41": "A", "a%41b": "aAb", "%41%42": "AB",
		"%2525": "%25", "%25%34%31": "%41", "%%41": "%A", "%4%41": "%4A",
		"%": "%", "%%": "%%", "%4": "%4", "x%": "x%", "x%4": "x%4",
		"%zz": "%zz", "%4z": "%4z", "%z4": "%z4", "% 1": "% 1", "%+1": "%+1", "%0x": "%0x",
		"%ff%FF%fF": "\xff\xff\xff", "%00": "\x00", "%0A": "\n", "%e2%82%AC": "€", "+": "+", "%2B": "+", "€%41": "€A",
	} {
		assert.Equal(t, want, percentDecode(in), "%q", in)
	}
}

func TestMessage_ContentHash(t *testing.T) {
	t.Parallel()
	hash := func(payload string, canonical bool) string {
		sum := contentHash([]byte(payload), canonical)
		return hex.EncodeToString(sum[:])
	}
	// Golden: hashes are compared with those that files hold.
	for payload, want := range map[string][2]string{
		"":              {"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
		"hello":         {helloHash, helloHash},
		`{"b":1,"a":2}`: {"a1d46c3cdb4e5795c8d637f80daeb578ebb1a9a65dc1ed5f11f51794c3c89f3a", "d3626ac30a87e6f7a6428233b3c68299976865fa5508e4267c5415c76af7a772"},
		`{"a":2,"b":1}`: {"d3626ac30a87e6f7a6428233b3c68299976865fa5508e4267c5415c76af7a772", "d3626ac30a87e6f7a6428233b3c68299976865fa5508e4267c5415c76af7a772"},
		`{"a":2, "b":1`: {"346ac55090b241d97d01ff2cf72b5f7fb0cbfbcb1884e742ddf392ee59d25d57", "346ac55090b241d97d01ff2cf72b5f7fb0cbfbcb1884e742ddf392ee59d25d57"},
	} {
		assert.Equal(t, want[0], hash(payload, false), payload)
		assert.Equal(t, want[1], hash(payload, true), payload)
	}
	sum := contentHash(nil, false)
	assert.Equal(t, hash("", false), hex.EncodeToString(sum[:]), "nil is empty")

	for _, c := range []struct {
		a, b            string
		plain, isOneAll bool // one by bytes; one as canonical JSON
	}{
		{`{"a":1,"b":[1,2]}`, " {\"b\" : [1.0,2e0],\n\"a\":1}", false, true},
		{`"\u0041"`, `"A"`, false, true},
		{`[1,2]`, `[2,1]`, false, false},
		{`1`, `"1"`, false, false},
		{`null`, ``, false, false},
		{`{"a":1,"a":2}`, `{"a":2}`, false, false}, // no certain meaning: by bytes
		{`{"a":1,"a":2}`, `{"a":1,"a":2}`, true, true},
		{`{"a":1,}`, `{"a":1}`, false, false},
		{"\"\xff\"", "\"\xfe\"", false, false},
		{`"\ud800"`, `"\udfff"`, false, false},
		{`1e400`, `1e401`, false, false},
		{"x", "x ", false, false},
		{"x\x00", "x", false, false},
	} {
		assert.Equal(t, c.plain, hash(c.a, false) == hash(c.b, false), "%s and %s, plain", c.a, c.b)
		assert.Equal(t, c.isOneAll, hash(c.a, true) == hash(c.b, true), "%s and %s, canonical", c.a, c.b)
	}
}

func TestMessage_Validate(t *testing.T) {
	t.Parallel()
	huge := make([]byte, MaxPayload+1) // never touched: it costs address space only
	for name, c := range map[string]struct {
		m    Message
		want string
	}{
		"no id":             {Message{Source: "s"}, "ID is empty"},
		"an id":             {Message{ID: "1"}, ""},
		"a space is an id":  {Message{ID: " "}, ""},
		"a NUL is an id":    {Message{ID: "\x00"}, ""},
		"the largest":       {Message{ID: "1", Payload: huge[:MaxPayload]}, ""},
		"larger":            {Message{ID: "1", Payload: huge}, "268435457 bytes, the limit is 268435456"},
		"larger, and no id": {Message{Payload: huge}, "ID is empty"},
	} {
		err := c.m.validate()
		if c.want == "" {
			assert.NoError(t, err, name)
			continue
		}
		assert.ErrorIs(t, err, ErrInvalidMessage, name)
		assert.ErrorContains(t, err, c.want, name)
	}
}

// Golden: the outside world holds these keys. They never change, in no version.
func TestMessage_IdempotencyKeyGolden(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		m    Message
		want string
	}{
		{Message{consumer: "orders", rule: ruleProducer, Source: "/shop", ID: "o-1"}, "0743c46dae92432f9ce5c23d8099393d2b786939d53012176fb90b8681602601"},
		{Message{consumer: "orders", rule: ruleProducer, ID: "o-1"}, "79310c914681ceea01d9d3c3edff08d931835ae1a8a5e8bc9ac3d3da3ad15e67"},
		{Message{consumer: "orders", rule: ruleMsgID, Source: "ORDERS", ID: "o-1"}, "da78fecf7a18beb55a36db2e28ba73061c515d4e1667fe99f4e6a28f83c4abe4"},
		{Message{consumer: "orders", rule: ruleHeader, Source: "ORDERS", ID: "o-1"}, "2c5ba7d19afd4f6ceb7b97b581941a28e656f0c269c8d23c23da43e227f3f019"},
		{Message{consumer: "orders", rule: ruleJSON, Source: "ORDERS", ID: "o-1"}, "6e8ae5d18613cb7d25a97e3bfb4022872d062c8ac4d24e14473bbe049e90014e"},
		{Message{consumer: "orders", rule: ruleContent, Source: "ORDERS", ID: helloHash}, "603f41f77e60cd5e9b69e9a42a2acde45872f8dd40f9f74bee435b8519052409"},
		{Message{consumer: "orders", rule: ruleSequence, Source: "ORDERS", ID: "1/2/3"}, "7328e0f4c0f296d374eab32c50aaca30e5fff6daedf042157b9d7b513cea3663"},
		{Message{consumer: "käse", rule: ruleProducer, Source: "\xff\x00", ID: "\x00"}, "e3a1cda4256bedb529743c4491505d51a1181ffecba9e14d46d9cd29bcc676d8"},
	} {
		assert.Equal(t, c.want, c.m.IdempotencyKey(), "%+v", c.m)
	}
}

// The key is one for all attempts, also for those after a restart.
func TestMessage_IdempotencyKeyOfEveryAttempt(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	var mu sync.Mutex
	var keys []string
	h := func(_ context.Context, _ *Tx, m *Message) error {
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, m.IdempotencyKey())
		return errors.New("again")
	}
	attempts := func(n int) func() bool {
		return func() bool { mu.Lock(); defer mu.Unlock(); return len(keys) >= n }
	}
	quick := &ConsumerOptions{Retry: RetryPolicy{Initial: 1e6, Max: 1e6}}
	_, err := l.consumer("orders", h, quick).Process(ctxBG, Message{Source: "/shop", ID: "o-1"})
	require.NoError(t, err)
	stop := l.run()
	l.eventually(attempts(3), "attempts")
	stop()
	l.close()
	l.open()
	l.consumer("orders", h, quick)
	stop = l.run()
	l.eventually(attempts(len(keys)+2), "attempts after a restart")
	stop()
	for _, key := range keys {
		assert.Equal(t, "0743c46dae92432f9ce5c23d8099393d2b786939d53012176fb90b8681602601", key)
	}
}
