package inbox

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	// maxJCSDepth is how many arrays and objects may be nested. The
	// parser is recursive; without a limit a body of nothing but '['
	// would grow the stack until the process dies.
	maxJCSDepth = 1000

	// maxJCSNumberLen is the longest number, in bytes. It keeps
	// strconv.ParseFloat exact: that function reads no more than five
	// digits of an exponent, which gives a wrong value if the number is
	// long enough to offset it ("0.", 9,990 zeros, "1e100000" comes out
	// as 1e9). No double needs more than 1,100 bytes, even written out
	// in full.
	maxJCSNumberLen = 4096
)

// canonicalJSON returns src in the one form that RFC 8785 (JSON
// Canonicalization Scheme, JCS) gives its value. Two documents that
// differ only in white space, order of properties, escapes or notation
// of numbers come out as the same bytes, so their hashes can be
// compared.
//
// JCS is defined for I-JSON (RFC 7493). Besides invalid JSON, what has
// no certain meaning is therefore an error: a property name that occurs
// twice in an object, bytes that are not UTF-8, half of a surrogate
// pair, a number beyond the range of a double. A number with more digits
// than a double holds is rounded, as RFC 8785 section 3.2.2.3 wants.
//
// An error names the byte of src, counted from 1 as encoding/json does.
// It quotes no more than one character, because src may hold personal
// data.
func canonicalJSON(src []byte) ([]byte, error) {
	if err := checkJSON(src); err != nil {
		return nil, fmt.Errorf("canonical JSON: %w", err)
	}
	c := jsonCursor{src: src}
	v, err := c.value(0)
	if err != nil {
		return nil, fmt.Errorf("canonical JSON: %w", err)
	}
	return appendJCS(make([]byte, 0, len(src)), v), nil
}

// jsonError says what is wrong with a JSON text, and where.
type jsonError struct {
	pos    int // of the byte, counted from 1
	reason string
}

func (e *jsonError) Error() string {
	return fmt.Sprintf("byte %d: %s", e.pos, e.reason)
}

// checkJSON reports the first error in the grammar of RFC 8259.
func checkJSON(src []byte) error {
	if json.Valid(src) {
		return nil
	}
	err := json.Unmarshal(src, new(json.RawMessage))
	if s, ok := errors.AsType[*json.SyntaxError](err); ok {
		return &jsonError{int(s.Offset), s.Error()}
	}
	return err
}

// decodeJSONString returns what a JSON string, given with its quotes,
// stands for. Unlike encoding/json it refuses invalid UTF-8 and lone
// surrogates instead of replacing them by U+FFFD: a replacement would
// make different strings equal.
func decodeJSONString(raw []byte) (string, error) {
	if err := checkJSON(raw); err != nil {
		return "", err
	}
	c := jsonCursor{src: raw}
	return c.str()
}

// jsonCursor walks over a text that checkJSON found valid; so it need
// not look at the grammar again.
type jsonCursor struct {
	src []byte
	pos int // index of the next byte
}

// jcsMember is a property of an object.
type jcsMember struct {
	name  string
	units []uint16 // name in UTF-16, the sort key
	pos   int      // index of the name in the source
	value any
}

// value reads the next value: nil, bool, float64, string, []any, or
// []jcsMember for an object. depth is how many arrays and objects
// enclose it.
func (c *jsonCursor) value(depth int) (any, error) {
	b := c.token()
	if (b == '{' || b == '[') && depth == maxJCSDepth {
		return nil, c.errorAt(c.pos, fmt.Sprintf("nested deeper than %d levels", maxJCSDepth))
	}
	switch b {
	case '{':
		return c.object(depth + 1)
	case '[':
		return c.array(depth + 1)
	case '"':
		return c.str()
	case 't':
		c.pos += len("true")
		return true, nil
	case 'f':
		c.pos += len("false")
		return false, nil
	case 'n':
		c.pos += len("null")
		return nil, nil
	}
	return c.number()
}

// token skips white space and separators and returns the byte that
// follows, without reading it.
func (c *jsonCursor) token() byte {
	for {
		switch b := c.src[c.pos]; b {
		case ' ', '\t', '\r', '\n', ',', ':':
			c.pos++
		default:
			return b
		}
	}
}

func (c *jsonCursor) object(depth int) ([]jcsMember, error) {
	var members []jcsMember
	for c.pos++; c.token() != '}'; {
		pos := c.pos
		name, err := c.str()
		if err != nil {
			return nil, err
		}
		v, err := c.value(depth)
		if err != nil {
			return nil, err
		}
		units := utf16.Encode([]rune(name))
		members = append(members, jcsMember{name, units, pos, v})
	}
	c.pos++

	// The order of UTF-16 code units (RFC 8785 section 3.2.3) is not that
	// of UTF-8 bytes: U+1F600 is D83D DE00 and comes before U+FB33.
	slices.SortFunc(members, func(a, b jcsMember) int {
		return cmp.Or(slices.Compare(a.units, b.units), cmp.Compare(a.pos, b.pos))
	})
	for i := 1; i < len(members); i++ {
		if members[i].name == members[i-1].name {
			return nil, c.errorAt(members[i].pos, "duplicate property name")
		}
	}
	return members, nil
}

func (c *jsonCursor) array(depth int) ([]any, error) {
	var elements []any
	for c.pos++; c.token() != ']'; {
		v, err := c.value(depth)
		if err != nil {
			return nil, err
		}
		elements = append(elements, v)
	}
	c.pos++
	return elements, nil
}

// number reads a number and rounds it to the nearest double.
func (c *jsonCursor) number() (float64, error) {
	start := c.pos
	for c.pos < len(c.src) && strings.IndexByte("+-.0123456789Ee", c.src[c.pos]) >= 0 {
		c.pos++
	}
	if c.pos-start > maxJCSNumberLen {
		return 0, c.errorAt(start, fmt.Sprintf("number is longer than %d bytes", maxJCSNumberLen))
	}
	f, err := strconv.ParseFloat(string(c.src[start:c.pos]), 64)
	if err != nil { // the syntax is right, so it is the range
		return 0, c.errorAt(start, "number is beyond the range of a double")
	}
	return f, nil
}

// Escapes of two characters: jcsLetters[i] after a backslash stands for
// jcsEscaped[i] (RFC 8259 section 7). JCS does not write the one for '/'.
const (
	jcsEscaped = "\b\t\n\f\r\"\\/"
	jcsLetters = `btnfr"\/`
)

// str reads a string, from its first quote to its last, and decodes it.
func (c *jsonCursor) str() (string, error) {
	var out []byte
	for c.pos++; c.src[c.pos] != '"'; {
		if c.src[c.pos] == '\\' {
			r, err := c.escape()
			if err != nil {
				return "", err
			}
			out = utf8.AppendRune(out, r)
			continue
		}
		r, size := utf8.DecodeRune(c.src[c.pos:])
		if r == utf8.RuneError && size == 1 {
			return "", c.errorAt(c.pos, "invalid UTF-8")
		}
		out = append(out, c.src[c.pos:c.pos+size]...)
		c.pos += size
	}
	c.pos++
	return string(out), nil
}

// escape reads one escape, or the two that form a surrogate pair.
func (c *jsonCursor) escape() (rune, error) {
	start, letter := c.pos, c.src[c.pos+1]
	if i := strings.IndexByte(jcsLetters, letter); i >= 0 {
		c.pos += 2
		return rune(jcsEscaped[i]), nil
	}
	r := c.codeUnit()
	if utf16.IsSurrogate(r) {
		// DecodeRune returns U+FFFD for anything but a pair.
		if r = utf16.DecodeRune(r, c.codeUnit()); r == utf8.RuneError {
			return 0, c.errorAt(start, "lone surrogate")
		}
	}
	return r, nil
}

// codeUnit reads \uXXXX. It returns 0 if something else comes next.
func (c *jsonCursor) codeUnit() rune {
	if !bytes.HasPrefix(c.src[c.pos:], []byte(`\u`)) {
		return 0
	}
	n, _ := strconv.ParseUint(string(c.src[c.pos+2:c.pos+6]), 16, 16)
	c.pos += 6
	return rune(n)
}

func (c *jsonCursor) errorAt(index int, reason string) error {
	return &jsonError{index + 1, reason}
}

// appendJCS appends the canonical form of what jsonCursor.value returns.
func appendJCS(out []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(out, "null"...)
	case bool:
		return strconv.AppendBool(out, v)
	case float64:
		return appendJCSNumber(out, v)
	case string:
		return appendJCSString(out, v)
	case []any:
		out = append(out, '[')
		for i, element := range v {
			if i > 0 {
				out = append(out, ',')
			}
			out = appendJCS(out, element)
		}
		return append(out, ']')
	case []jcsMember:
		out = append(out, '{')
		for i, m := range v {
			if i > 0 {
				out = append(out, ',')
			}
			out = append(appendJCSString(out, m.name), ':')
			out = appendJCS(out, m.value)
		}
		return append(out, '}')
	}
	panic(fmt.Sprintf("canonical JSON: no form for %T", v))
}

// appendJCSNumber appends f as ECMAScript's Number::toString writes it
// (RFC 8785 section 3.2.2.3): the fewest digits that read back as f,
// with an exponent below 1e-6 and from 1e21 on.
func appendJCSNumber(out []byte, f float64) []byte {
	abs := math.Abs(f)
	if abs == 0 {
		return append(out, '0') // -0 too
	}
	if 1e-6 <= abs && abs < 1e21 {
		return strconv.AppendFloat(out, f, 'f', -1, 64)
	}
	out = strconv.AppendFloat(out, f, 'e', -1, 64)
	// Go writes at least two digits of exponent: 1e-07 becomes 1e-7.
	if n := len(out); out[n-2] == '0' && out[n-3] == '-' {
		out = append(out[:n-2], out[n-1])
	}
	return out
}

// appendJCSString appends s in quotes. What JSON does not force into an
// escape stays as it is (RFC 8785 section 3.2.2.2).
func appendJCSString(out []byte, s string) []byte {
	out = append(out, '"')
	for _, b := range []byte(s) {
		if i := strings.IndexByte(jcsEscaped, b); i >= 0 && b != '/' {
			out = append(out, '\\', jcsLetters[i])
		} else if b < ' ' {
			out = fmt.Appendf(out, `\u%04x`, b)
		} else {
			out = append(out, b)
		}
	}
	return append(out, '"')
}
