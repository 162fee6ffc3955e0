package inbox

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

var (
	// errPathAbsent means that the document has nothing at the path, or
	// null. Both are ways to say "no value".
	errPathAbsent = errors.New("no value")

	// errPathInvalid means that the document is not to be trusted with
	// the question, or that its answer is no string or number.
	errPathInvalid = errors.New("no usable value")
)

// jsonPath names one place in a JSON document. The zero jsonPath is "$",
// the document itself.
type jsonPath struct {
	text  string // as it was written, for messages
	steps []jsonStep
}

// jsonStep goes from a value to one inside it: into an object by name,
// or into an array by index.
type jsonStep struct {
	name    string // of a property, if !isIndex
	isIndex bool
	index   int  // counted from 0; with fromEnd from the end, where 1 is the last
	fromEnd bool // written [#-1]
	end     int  // length of the path up to and including this step, in bytes
}

// parseJSONPath reads a path in the syntax of SQLite's JSON functions
// (https://sqlite.org/json1.html#path_arguments), so that the same text
// works in a query over the stored documents:
//
//	$.order.id       property id of property order
//	$.items[0].sku   of the first element of an array
//	$.items[#-1].sku of the last one
//	$."a.b".c        a name in quotes, with the escapes of JSON strings
//	$                the document itself
//
// What it accepts means the same to SQLite. SQLite accepts more: paths
// that can never find anything ([#]), indexes that overflow 32 bits and
// wrap, and names without quotes that hold characters which more often
// are a typing error or the syntax of another path language ($.*, $.a]).
func parseJSONPath(s string) (jsonPath, error) {
	p := jsonPath{text: s}
	if !utf8.ValidString(s) {
		return jsonPath{}, pathSyntaxError(s, 0, "the path is not valid UTF-8")
	}
	if !strings.HasPrefix(s, "$") {
		return jsonPath{}, pathSyntaxError(s, 0, "a path starts with '$', the document")
	}
	for pos := 1; pos < len(s); {
		var step jsonStep
		var err error
		switch {
		case strings.HasPrefix(s[pos:], `."`):
			step, err = parseQuotedName(s, pos)
		case s[pos] == '.':
			step, err = parseName(s, pos)
		case s[pos] == '[':
			step, err = parseIndex(s, pos)
		default:
			err = pathSyntaxError(s, pos, "want '.' and a name, '[' and an index, or the end")
		}
		if err != nil {
			return jsonPath{}, err
		}
		p.steps = append(p.steps, step)
		pos = step.end
	}
	return p, nil
}

// parseName reads .name at s[pos:].
func parseName(s string, pos int) (jsonStep, error) {
	start, end := pos+1, len(s)
	if n := strings.IndexAny(s[start:], ".["); n >= 0 {
		end = start + n
	}
	if start == end {
		return jsonStep{}, pathSyntaxError(s, start, "a name is missing after '.'")
	}
	for i, r := range s[start:end] {
		if r <= ' ' || r == '\x7f' || strings.ContainsRune(`"'*\]`, r) {
			return jsonStep{}, pathSyntaxError(s, start+i,
				fmt.Sprintf("a name with %q must be in double quotes", r))
		}
	}
	return jsonStep{name: s[start:end], end: end}, nil
}

// parseQuotedName reads ."name" at s[pos:].
func parseQuotedName(s string, pos int) (jsonStep, error) {
	start := pos + 1
	end := start + 1
	for end < len(s) && s[end] != '"' {
		if s[end] == '\\' {
			end++
		}
		end++
	}
	if end >= len(s) {
		return jsonStep{}, pathSyntaxError(s, start, "a quote is not closed")
	}
	end++
	name, err := decodeJSONString([]byte(s[start:end]))
	if err != nil {
		at := start
		if e, ok := errors.AsType[*jsonError](err); ok {
			at += e.pos - 1
		}
		return jsonStep{}, pathSyntaxError(s, at, "in the name, "+err.Error())
	}
	return jsonStep{name: name, end: end}, nil
}

// parseIndex reads [0] or [#-1] at s[pos:].
func parseIndex(s string, pos int) (jsonStep, error) {
	inside, _, closed := strings.Cut(s[pos+1:], "]")
	if !closed {
		return jsonStep{}, pathSyntaxError(s, pos, "']' is missing")
	}
	digits, fromEnd := strings.CutPrefix(inside, "#-")
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return jsonStep{}, pathSyntaxError(s, pos+1,
			"an index is a number, or #- and a number to count from the end")
	}
	index, err := strconv.Atoi(digits)
	if err != nil || index > math.MaxInt32 {
		return jsonStep{}, pathSyntaxError(s, pos+1, "the index is too large")
	}
	if fromEnd && index == 0 {
		return jsonStep{}, pathSyntaxError(s, pos+1, "the last element is [#-1]")
	}
	end := pos + len("[") + len(inside) + len("]")
	return jsonStep{isIndex: true, index: index, fromEnd: fromEnd, end: end}, nil
}

// pathSyntaxError gives the column in characters, counted from 1.
func pathSyntaxError(s string, pos int, reason string) error {
	column := utf8.RuneCountInString(s[:pos]) + 1
	return fmt.Errorf("JSON path %q, column %d: %s; right would be, for example, %s",
		s, column, reason, `$.order.id, $.items[0].sku or $."a.b".c`)
}

// lookup returns the string (decoded) or the number (as it is written)
// at the path. Another answer is errPathAbsent or errPathInvalid, for
// errors.Is.
//
// The answer decides which documents are the same one. So the whole
// document must be valid before any of it counts, and it must have one
// answer only: RFC 8259 section 4 leaves to each parser which of several
// properties with equal names it takes, so two on the path are an error.
// The rest of the document may hold such properties.
//
// Each step reads the value it goes into at most twice.
func (p jsonPath) lookup(doc []byte) (string, error) {
	if !utf8.Valid(doc) {
		return "", p.errorf(errPathInvalid, "the document is not valid UTF-8")
	}
	if err := checkJSON(doc); err != nil {
		return "", p.errorf(errPathInvalid, "the document is not valid JSON: %v", err)
	}
	c := jsonCursor{src: doc}
	value := c.skipValue()
	for _, step := range p.steps {
		found, unique := step.find(value)
		if !unique {
			return "", p.errorf(errPathInvalid, "%s occurs more than once", p.text[:step.end])
		}
		if found == nil {
			return "", p.errorf(errPathAbsent, "there is no %s", p.text[:step.end])
		}
		value = found
	}

	switch value[0] {
	case '"':
		s, err := decodeJSONString(value)
		if err != nil {
			return "", p.errorf(errPathInvalid, "in the string, %v", err)
		}
		return s, nil
	case 'n':
		return "", p.errorf(errPathAbsent, "it is null")
	case 't', 'f':
		return "", p.errorf(errPathInvalid, "it is a boolean")
	case '{':
		return "", p.errorf(errPathInvalid, "it is an object")
	case '[':
		return "", p.errorf(errPathInvalid, "it is an array")
	}
	return string(value), nil
}

func (p jsonPath) errorf(kind error, format string, args ...any) error {
	return fmt.Errorf("JSON path %s: %w: %s", p.text, kind, fmt.Sprintf(format, args...))
}

// find returns the value that the step leads to from a container, or nil
// if there is none. It is not unique if the container has the name more
// than once.
func (s jsonStep) find(container []byte) (found []byte, unique bool) {
	switch {
	case s.isIndex && container[0] == '[':
		return s.findElement(container), true
	case !s.isIndex && container[0] == '{':
		return s.findProperty(container)
	}
	return nil, true
}

func (s jsonStep) findElement(array []byte) []byte {
	index := s.index
	if s.fromEnd {
		index = -s.index
		for range jsonItems(array) {
			index++
		}
	}
	for item := range jsonItems(array) {
		if index == 0 {
			return item
		}
		index--
	}
	return nil
}

func (s jsonStep) findProperty(object []byte) (found []byte, unique bool) {
	isName, matches := true, false
	for item := range jsonItems(object) {
		switch {
		case isName:
			matches = nameEquals(item, s.name)
		case matches && found != nil:
			return nil, false
		case matches:
			found = item
		}
		isName = !isName
	}
	return found, true
}

// nameEquals compares a name in a document, raw and with its quotes. A
// name with a lone surrogate equals none.
func nameEquals(raw []byte, name string) bool {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1:len(raw)-1]) == name
	}
	decoded, err := decodeJSONString(raw)
	return err == nil && decoded == name
}

// jsonItems yields the raw elements of an array, or the raw names and
// values of an object in turn.
func jsonItems(container []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		c := jsonCursor{src: container, pos: 1}
		for b := c.token(); b != ']' && b != '}'; b = c.token() {
			if !yield(c.skipValue()) {
				return
			}
		}
	}
}

// skipValue returns the next value as it is written. It finds the end of
// an array or object by counting brackets, not by recursion.
func (c *jsonCursor) skipValue() []byte {
	c.token()
	start := c.pos
	for depth := 0; ; {
		switch c.token() {
		case '"':
			c.skipString()
		case '{', '[':
			c.pos++
			depth++
		case '}', ']':
			c.pos++
			depth--
		default:
			c.skipWord()
		}
		if depth == 0 {
			return c.src[start:c.pos]
		}
	}
}

// skipString reads a string, from its first quote to its last.
func (c *jsonCursor) skipString() {
	for c.pos++; c.src[c.pos] != '"'; c.pos++ {
		if c.src[c.pos] == '\\' {
			c.pos++
		}
	}
	c.pos++
}

// skipWord reads a number, true, false or null.
func (c *jsonCursor) skipWord() {
	for ; c.pos < len(c.src); c.pos++ {
		switch c.src[c.pos] {
		case ' ', '\t', '\r', '\n', ',', ']', '}':
			return
		}
	}
}
