package sqlhandler

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"edge.example/inbox"
)

// A call is a message on its way through a handler.
type call struct {
	*inbox.Message
	data any // its payload as it is bound, once made
}

// A binding gives the value of a parameter.
type binding func(*call) any

// bindings are the parameters that a statement may use, besides :header_NAME.
var bindings = map[string]binding{
	"id":          func(m *call) any { return m.ID },
	"source":      func(m *call) any { return m.Source },
	"type":        func(m *call) any { return orNull(m.Type) },
	"subject":     func(m *call) any { return orNull(m.Subject) },
	"key":         func(m *call) any { return orNull(m.Key) },
	"data":        (*call).bindData,
	"received_at": func(m *call) any { return m.ReceivedAt.UTC().Format("2006-01-02T15:04:05.000Z") },
	"attempt":     func(m *call) any { return int64(m.Attempt) },
}

// Parameters lists them, for messages and documentation.
const Parameters = ":id :source :type :subject :key :data :received_at :attempt :header_NAME"

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// bindData is the payload as text, so that SQLite's JSON functions read it, or
// as a blob when it is no text.
func (m *call) bindData() any {
	if m.data == nil {
		m.data = m.Payload
		if utf8.Valid(m.Payload) {
			m.data = string(m.Payload)
		}
	}
	return m.data
}

const headerPrefix = "header_"

// header binds a header by name: in any case, and with _ for what a parameter
// cannot hold, so :header_ce_time is Ce-Time.
func header(name string) binding {
	name = headerName(name)
	return func(m *call) any {
		best := ""
		var value any
		for k, vs := range m.Headers {
			if len(vs) > 0 && headerName(k) == name && (best == "" || k < best) {
				best, value = k, vs[0]
			}
		}
		return value
	}
}

func headerName(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, s)
}

// compiled is SQL whose parameters are known.
type compiled struct {
	text   string
	values []binding
}

// compile checks that sql is one statement with parameters that messages have,
// and numbers these: each value is bound once, by position.
func compile(sql string) (compiled, error) {
	tokens, err := scan(sql)
	if err != nil {
		return compiled{}, err
	}
	for len(tokens) > 0 && tokens[len(tokens)-1].kind == semicolon {
		tokens = tokens[:len(tokens)-1]
	}
	if len(tokens) == 0 {
		return compiled{}, fmt.Errorf("the statement is empty")
	}
	var c compiled
	var b strings.Builder
	numbers := map[string]int{}
	done := 0
	for _, t := range tokens {
		switch t.kind {
		case semicolon:
			return compiled{}, fmt.Errorf("a second statement follows the semicolon at byte %d: write each as an entry of its own", t.at)
		case parameter:
			value, err := bindingOf(t.text)
			if err != nil {
				return compiled{}, err
			}
			name := strings.ToLower(t.text)
			if numbers[name] == 0 {
				c.values = append(c.values, value)
				numbers[name] = len(c.values)
			}
			fmt.Fprintf(&b, "%s?%d", sql[done:t.at], numbers[name])
			done = t.at + len(t.text)
		}
	}
	last := tokens[len(tokens)-1]
	b.WriteString(sql[done : last.at+len(last.text)])
	c.text = b.String()
	return c, nil
}

func bindingOf(param string) (binding, error) {
	name := strings.ToLower(strings.TrimPrefix(param, ":"))
	switch {
	case param[0] != ':':
		return nil, fmt.Errorf("parameter %s: parameters have names: %s", param, Parameters)
	case bindings[name] != nil:
		return bindings[name], nil
	case len(name) > len(headerPrefix) && strings.HasPrefix(name, headerPrefix):
		return header(name[len(headerPrefix):]), nil
	}
	return nil, fmt.Errorf("there is no parameter %s: a message has %s; a field of its payload is :data ->> '$.field'", param, Parameters)
}

// bind is the values of c's parameters for m.
func (c *compiled) bind(buf []any, m *call) []any {
	for _, v := range c.values {
		buf = append(buf, v(m))
	}
	return buf
}
