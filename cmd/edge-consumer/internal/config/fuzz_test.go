package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzLoadTests: a file of tests is read or refused.
func FuzzLoadTests(f *testing.F) {
	f.Add("tests:\n- name: a\n  consumer: c\n  messages:\n  - data: {a: 1}\n  expect: {outcomes: [applied]}\n")
	f.Add("tests: [{}]")
	f.Add("tests: [{messages: [{data: !!binary x}]}]")
	f.Add("a: &a [*a]\n")
	path := filepath.Join(f.TempDir(), "t.yaml")
	f.Fuzz(func(t *testing.T, text string) {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		tests, err := LoadTests(path)
		require.Equal(t, tests == nil, err != nil)
	})
}

// FuzzPayloadSchema: a schema is taken or refused, and says of any payload
// whether it fits, twice the same.
func FuzzPayloadSchema(f *testing.F) {
	f.Add(`{"type": "object", "required": ["id"], "properties": {"id": {"type": "string", "pattern": "^a+$"}}}`, []byte(`{"id": "aaa"}`))
	f.Add(`{"$ref": "#"}`, []byte(`[]`))
	f.Add(`{"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}`, []byte(`1`))
	f.Add(`{"items": {"$dynamicRef": "#x"}, "$dynamicAnchor": "x"}`, []byte(`[[[[1e999999]]]]`))
	f.Add(`true`, []byte(`{"a": {"a": {"a": 0.1}}}`))
	f.Add(`{"multipleOf": 0.01}`, []byte(`1e400`))
	path := filepath.Join(f.TempDir(), "s.json")
	f.Fuzz(func(t *testing.T, schema string, payload []byte) {
		require.NoError(t, os.WriteFile(path, []byte(schema), 0o600))
		s, err := (&Consumer{Schema: path}).PayloadSchema()
		if err != nil {
			return
		}
		first, second := s.Check(payload), s.Check(payload)
		require.Equal(t, first == nil, second == nil)
	})
}
