package config

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// ${VAR}, ${VAR:-default} when it is unset or empty, ${VAR:?message} when it
// must not be; $${ is a plain ${.
var reference = regexp.MustCompile(`\$?\$\{([^}]*)\}`)
var variable = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*)(?:(:-|:\?)(.*))?$`)

// expand replaces references to environment variables in all values but SQL:
// there, what is not in the file can only be bound. A value that was written
// without quotes is read anew, so that ${PORT} can be a number; it cannot
// become more than a value.
func (f *file) expand(body ast.Node, lookup func(string) (string, bool)) (problems Problems) {
	ast.Walk(visitor(func(n ast.Node) bool {
		mv, ok := n.(*ast.MappingValueNode)
		if ok && (mv.Key.GetToken().Value == "sql" || mv.Key.GetToken().Value == "when") {
			return false
		}
		var values []*ast.Node
		switch n := n.(type) {
		case *ast.MappingValueNode:
			values = append(values, &n.Value)
		case *ast.SequenceNode:
			for i := range n.Values {
				values = append(values, &n.Values[i])
			}
		}
		for _, v := range values {
			s, ok := (*v).(*ast.StringNode)
			if !ok || !strings.Contains(s.Value, "${") {
				continue
			}
			text, err := expandText(s.Value, lookup)
			if err != nil && f.lenient {
				text, err = "unset", nil
			}
			if err != nil {
				problems = append(problems, f.at(s.GetToken(), "%v", err))
				continue
			}
			quoted := strings.HasPrefix(s.GetToken().Origin, `"`) || strings.HasPrefix(strings.TrimSpace(s.GetToken().Origin), `"`) ||
				strings.HasPrefix(strings.TrimSpace(s.GetToken().Origin), `'`)
			s.Value = text
			if quoted {
				continue
			}
			if again := plainScalar(text); again != nil {
				again.GetToken().Position = s.GetToken().Position
				*v = again
			}
		}
		return true
	}), body)
	return problems
}

type visitor func(ast.Node) bool

func (v visitor) Visit(n ast.Node) ast.Visitor {
	if v(n) {
		return v
	}
	return nil
}

// plainScalar reads text as YAML; nil unless it is a number, a truth value or
// null.
func plainScalar(text string) ast.Node {
	f := &file{source: []byte(text)}
	if err := f.read(); err != nil || len(f.tree.Docs) != 1 {
		return nil
	}
	switch n := f.tree.Docs[0].Body.(type) {
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n
	}
	return nil
}

func expandText(s string, lookup func(string) (string, bool)) (string, error) {
	var failed error
	out := reference.ReplaceAllStringFunc(s, func(ref string) string {
		if strings.HasPrefix(ref, "$$") {
			return ref[1:]
		}
		m := variable.FindStringSubmatch(ref[2 : len(ref)-1])
		if m == nil {
			failed = fmt.Errorf("%s: write ${VAR}, ${VAR:-default} or ${VAR:?message}", ref)
			return ""
		}
		value, set := lookup(m[1])
		switch {
		case m[2] == "" && !set:
			failed = fmt.Errorf("the environment variable %s is not set: set it, or give a default: ${%s:-…}", m[1], m[1])
		case m[2] == ":-" && value == "":
			return m[3]
		case m[2] == ":?" && value == "":
			failed = fmt.Errorf("the environment variable %s is not set: %s", m[1], m[3])
		}
		return value
	})
	return out, failed
}

// EnvPrefix begins the variables that set single settings: EDGE_LOG_LEVEL is
// log.level. They go before the file.
const EnvPrefix = "EDGE_"

// overlay applies them, and then the flags, by the settings' names.
func (c *Config) overlay(lookup func(string) (string, bool), flags map[string]Flag) (problems Problems) {
	settings := c.settings()
	c.file.overlaid = map[string]string{}
	set := func(from, name, text string) {
		c.file.overlaid[name] = from
		if err := assign(settings[name].value, text); err != nil {
			problems = append(problems, c.file.in("$."+name, "%v", err))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		if flag, ok := flags[name]; ok {
			set("the flag --"+flag.Name, name, flag.Value)
		} else if text, ok := lookup(EnvName(name)); ok {
			set("the environment variable "+EnvName(name), name, text)
		}
	}
	return problems
}

// EnvName is the environment variable of a setting.
func EnvName(setting string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(setting, ".", "_"))
}

// Misspelled are the variables of an environment that nearly are those of a
// setting, each with what it may have been meant to be.
func (c *Config) Misspelled(environ []string) (warnings []string) {
	var names []string
	for setting := range c.settings() {
		names = append(names, strings.ToLower(strings.TrimPrefix(EnvName(setting), EnvPrefix)))
	}
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		rest, ours := strings.CutPrefix(name, EnvPrefix)
		if !ours || value == "" || slices.Contains(names, strings.ToLower(rest)) {
			continue
		}
		if near := nearest(rest, names); near != "" {
			warnings = append(warnings, fmt.Sprintf("the environment variable %s sets nothing; did you mean %s?", name, EnvName(near)))
		}
	}
	return warnings
}

// A setting is a field of the configuration.
type setting struct {
	value reflect.Value
	live  bool // a reload changes it
}

// settings are the single settings by their names, like log.level: all but
// consumers and handlers.
func (c *Config) settings() map[string]setting {
	all := map[string]setting{}
	var walk func(prefix string, v reflect.Value)
	walk = func(prefix string, v reflect.Value) {
		for f, field := range v.Fields() {
			key := f.Tag.Get("yaml")
			switch {
			case key == "" || key == "consumers" || key == "handlers":
			case field.Kind() == reflect.Struct:
				walk(prefix+key+".", field)
			default:
				all[prefix+key] = setting{field, f.Tag.Get("reload") == "live"}
			}
		}
	}
	walk("", reflect.ValueOf(c).Elem())
	return all
}

// Fixed are the single settings that next has otherwise and that do not change
// while the gateway runs.
func (c *Config) Fixed(next *Config) (names []string) {
	settings, others := c.settings(), next.settings()
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		s := settings[name]
		if !s.live && !reflect.DeepEqual(s.value.Interface(), others[name].value.Interface()) {
			names = append(names, name)
		}
	}
	return names
}

// assign sets a field to what text says: a text as it is, a list with commas,
// anything else as the value would be written in the file.
func assign(field reflect.Value, text string) error {
	if field.Kind() == reflect.Pointer {
		field.Set(reflect.New(field.Type().Elem()))
		field = field.Elem()
	}
	switch field.Kind() {
	case reflect.String:
		field.SetString(text)
		return nil
	case reflect.Slice:
		list := reflect.MakeSlice(field.Type(), 0, 4)
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				list = reflect.Append(list, reflect.ValueOf(part))
			}
		}
		field.Set(list)
		return nil
	}
	f := &file{name: "environment", source: []byte(text)}
	if err := f.read(); err != nil || len(f.tree.Docs) != 1 || f.tree.Docs[0].Body == nil {
		return fmt.Errorf("%q cannot be read", text)
	}
	err := guarded(func() error { return yaml.NodeToValue(f.tree.Docs[0].Body, field.Addr().Interface(), yaml.Strict()) })
	if err != nil {
		return errors.New(f.problem(err).Message)
	}
	return nil
}
