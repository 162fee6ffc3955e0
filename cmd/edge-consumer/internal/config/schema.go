package config

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// A PayloadSchema says which payloads a consumer takes.
type PayloadSchema struct{ schema *jsonschema.Schema }

// noURL keeps schemas from loading anything: what a file refers to must be in it.
type noURL struct{}

func (noURL) Load(url string) (any, error) {
	return nil, fmt.Errorf("%s: a schema refers to itself only, not to other files or the network", url)
}

// PayloadSchema reads the consumer's JSON Schema; nil when it has none.
func (c *Consumer) PayloadSchema() (*PayloadSchema, error) {
	if c.Schema == "" {
		return nil, nil
	}
	text, err := os.ReadFile(c.Schema)
	if err != nil {
		return nil, err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("%s is not JSON: %w", c.Schema, err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(noURL{})
	const name = "payload.json"
	if err := compiler.AddResource(name, doc); err != nil {
		return nil, fmt.Errorf("%s: %w", c.Schema, err)
	}
	schema, err := compiler.Compile(name)
	if err != nil {
		return nil, fmt.Errorf("%s is no JSON Schema: %s", c.Schema, oneLine(err))
	}
	return &PayloadSchema{schema}, nil
}

// Check says what of the payload does not fit. The error holds no values of the
// payload but its places.
func (s *PayloadSchema) Check(payload []byte) error {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(payload))
	if err != nil {
		return fmt.Errorf("the payload is not JSON: %w", err)
	}
	err = s.schema.Validate(doc)
	if err == nil {
		return nil
	}
	var invalid *jsonschema.ValidationError
	if !errors.As(err, &invalid) {
		return err
	}
	var parts []string
	var walk func(*jsonschema.ValidationError)
	walk = func(e *jsonschema.ValidationError) {
		if len(e.Causes) == 0 && len(parts) < 5 {
			parts = append(parts, fmt.Sprintf("at /%s: %s", strings.Join(e.InstanceLocation, "/"), misfit(e.ErrorKind)))
		}
		for _, c := range e.Causes {
			walk(c)
		}
	}
	walk(invalid)
	return fmt.Errorf("the payload does not fit the schema: %s", strings.Join(parts, "; "))
}

// misfit says what does not fit without the value that does not.
func misfit(k jsonschema.ErrorKind) string {
	switch k := k.(type) {
	case *kind.Required:
		return "missing " + strings.Join(k.Missing, ", ")
	case *kind.Type:
		return fmt.Sprintf("is of type %s, wanted is %s", k.Got, strings.Join(k.Want, " or "))
	}
	return "fails " + strings.Join(k.KeywordPath(), "/")
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
