package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"edge.example/inbox/cmd/edge-consumer/internal/natsconn"
	"edge.example/inbox/cmd/edge-consumer/internal/sqlhandler"
	"edge.example/inbox/cmd/edge-consumer/internal/web"
	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite docs/edge.schema.json")

// schemaFile is the JSON Schema of the configuration, for editors:
//
//	# yaml-language-server: $schema=edge.schema.json
const schemaFile = "../../../../docs/edge.schema.json"

// TestJSONSchema holds the schema to the types that the configuration is read
// into, and their comments.
func TestJSONSchema(t *testing.T) {
	t.Parallel()
	want := makeSchema(t)
	if *update {
		require.NoError(t, os.WriteFile(schemaFile, want, 0o644))
	}
	got, err := os.ReadFile(schemaFile)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "run: go test ./cmd/edge-consumer/internal/config -run JSONSchema -update")

	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(got))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("edge.schema.json", doc))
	schema, err := c.Compile("edge.schema.json")
	require.NoError(t, err)
	valid := func(text string) error {
		var v any
		require.NoError(t, yaml.Unmarshal([]byte(text), &v))
		b, err := json.Marshal(v)
		require.NoError(t, err)
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
		require.NoError(t, err)
		return schema.Validate(doc)
	}
	for _, file := range []string{"../../../../testdata/gateway/edge.yaml", "../../example/edge.yaml"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.NoError(t, valid(string(text)), file)
	}
	assert.NoError(t, valid(small))
	for _, bad := range []string{
		small + "databse: {}\n", "database: {path: x}\n", small + "log: {level: inof}\n", small + "log: 1\n",
		strings.Replace(small, "stream: S", "stream: 7", 1), small + "shutdown_timeout: soon\n",
	} {
		assert.Error(t, valid(bad), bad)
	}
}

// A schemaMaker makes the JSON Schema of a type.
type schemaMaker struct {
	docs map[string]string // "Type.Field": its comment
}

func makeSchema(t *testing.T) []byte {
	m := schemaMaker{docs: map[string]string{}}
	for _, file := range []string{"config.go", "../natsconn/config.go", "../web/config.go"} {
		m.readComments(t, file)
	}
	root := m.of(reflect.TypeFor[Config]())
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "The configuration of edge-consumer"
	root["required"] = []string{"database", "consumers"}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	require.NoError(t, e.Encode(root))
	return b.Bytes()
}

func (m *schemaMaker) readComments(t *testing.T, file string) {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	require.NoError(t, err)
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		st, ok := spec.Type.(*ast.StructType)
		if !ok {
			return true
		}
		for _, field := range st.Fields.List {
			text := field.Doc.Text()
			if text == "" {
				text = field.Comment.Text()
			}
			for _, name := range field.Names {
				m.docs[spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(text), " ")
			}
		}
		return true
	})
}

// enums are the settings that take one of some words.
var enums = map[string][]string{
	"Log.Level": {"debug", "info", "warn", "error"}, "Log.Format": {"text", "json"}, "Consumer.Conflicts": {"keep", "ignore"},
	"Stream.Storage": {"file", "memory"}, "Stream.Discard": {"old", "new"},
}

// required are the settings that must be there.
var required = map[string][]string{"Database": {"path"}, "Consumer": {"name", "stream"}, "Stream": {"subjects"}, "Handler": {"sql"}}

type object = map[string]any

func (m *schemaMaker) of(t reflect.Type) object {
	reference := object{"type": "string", "pattern": `^\$\{.*\}$`} // ${VAR} in the place of anything
	switch t {
	case reflect.TypeFor[Duration]():
		return object{"anyOf": []any{object{"type": "string", "pattern": `^(\d+d)?(\d+(\.\d+)?(ns|us|µs|ms|s|m|h))*$`}, reference, object{"const": 0}}}
	case reflect.TypeFor[Size]():
		return object{"anyOf": []any{object{"type": "integer", "minimum": 0}, object{"type": "string", "pattern": `^\d+(\.\d+)? ?([kKmMgGtT]i?)?[bB]?$`}, reference}}
	case reflect.TypeFor[Start]():
		return object{"anyOf": []any{
			object{"enum": []string{"all", "new"}},
			object{"type": "object", "additionalProperties": false, "minProperties": 1, "maxProperties": 1,
				"properties": object{"sequence": object{"type": "integer", "minimum": 1}, "time": object{"type": "string", "format": "date-time"}}},
		}}
	case reflect.TypeFor[natsconn.URLs]():
		return object{"anyOf": []any{object{"type": "string"}, object{"type": "array", "items": object{"type": "string"}}}}
	case reflect.TypeFor[Statement]():
		return object{"anyOf": []any{object{"type": "string"}, m.structure(t)}}
	case reflect.TypeFor[web.Config]():
		return m.structure(t)
	}
	switch t.Kind() {
	case reflect.Pointer:
		return m.of(t.Elem())
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"anyOf": []any{object{"type": "boolean"}, reference}}
	case reflect.Int, reflect.Int64:
		return object{"anyOf": []any{object{"type": "integer"}, reference}}
	case reflect.Float64:
		return object{"anyOf": []any{object{"type": "number"}, reference}}
	case reflect.Slice:
		return object{"type": "array", "items": m.of(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": m.of(t.Elem())}
	case reflect.Struct:
		return m.structure(t)
	}
	panic(fmt.Sprint("no schema for ", t))
}

func (m *schemaMaker) structure(t reflect.Type) object {
	properties := object{}
	for f := range t.Fields() {
		key := f.Tag.Get("yaml")
		if key == "" {
			continue
		}
		s := maps.Clone(m.of(f.Type))
		name := t.Name() + "." + f.Name
		if words := enums[name]; words != nil {
			s = object{"enum": words}
		}
		if key == "permanent_if" {
			s = object{"type": "array", "items": object{"enum": sqlhandler.Causes}}
		}
		if doc := m.docs[name]; doc != "" {
			s["description"] = doc
		}
		properties[key] = s
	}
	s := object{"type": "object", "additionalProperties": false, "properties": properties}
	if r := required[t.Name()]; r != nil {
		s["required"] = slices.Clone(r)
	}
	return s
}
