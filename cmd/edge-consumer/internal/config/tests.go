package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// Tests are what `edge-consumer test` reads: messages in, rows out.
type Tests struct {
	Tests []Test `yaml:"tests"`

	file *file
}

// Test runs on a database of its own.
type Test struct {
	Name     string        `yaml:"name"`
	Messages []TestMessage `yaml:"messages"`
	Rows     []TestRows    `yaml:"rows"`
}

// TestMessage is a message and what becomes of it.
type TestMessage struct {
	Consumer string            `yaml:"consumer"`
	ID       string            `yaml:"id"` // default: message 1, message 2, …
	Source   string            `yaml:"source"`
	Type     string            `yaml:"type"`
	Subject  string            `yaml:"subject"`
	Key      *string           `yaml:"key"` // default: what the configuration says
	Headers  map[string]string `yaml:"headers"`
	Data     Data              `yaml:"data"`

	Outcome string `yaml:"outcome"` // of its delivery; default: applied
	Error   string `yaml:"error"`   // is in the error, when it is pending or dead
	Finally string `yaml:"finally"` // status after retries: completed or dead
}

// TestRows are the rows that a query must find.
type TestRows struct {
	Query  string           `yaml:"query"`
	Expect []map[string]any `yaml:"expect"`
}

// Data is a payload: a text as it is, anything else as JSON.
type Data []byte

func (d *Data) UnmarshalYAML(n ast.Node) error {
	if a, ok := n.(*ast.AnchorNode); ok {
		n = a.Value
	}
	if text, ok := n.(*ast.StringNode); ok {
		*d = []byte(text.Value)
		return nil
	}
	if text, ok := n.(*ast.LiteralNode); ok {
		*d = []byte(text.Value.Value)
		return nil
	}
	var v any
	if err := yaml.NodeToValue(n, &v); err != nil {
		return err
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return misread(n, "this cannot be JSON: %v", err)
	}
	*d = bytes.TrimSpace(b.Bytes())
	return nil
}

// LoadTests reads a file of tests.
func LoadTests(path string) (*Tests, error) {
	source, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	t := &Tests{file: &file{name: path, source: source, holds: reflect.TypeFor[Tests]()}}
	if err := t.file.read(); err != nil {
		return nil, Problems{t.file.problem(err)}
	}
	if err := guarded(func() error { return yaml.UnmarshalWithOptions(source, t, yaml.Strict()) }); err != nil {
		return nil, Problems{t.file.problem(err)}
	}
	if len(t.Tests) == 0 {
		return nil, errors.New(path + " has no tests")
	}
	return t, nil
}

// At is a problem with test number i.
func (t *Tests) At(i int, format string, args ...any) Problem {
	return t.file.in(fmt.Sprintf("$.tests[%d]", i), format, args...)
}
