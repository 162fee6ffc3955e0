package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"edge.example/inbox/cmd/edge-consumer/internal/natsconn"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// A file is the text that a configuration was read from.
type file struct {
	name   string // as the user wrote it
	dir    string // absolute
	source []byte
	tree   *ast.File
	holds  reflect.Type // what it is read into

	overlaid map[string]string // by setting: the variable or flag that set it
	lenient  bool              // a variable that is not set is no error
}

// maxFile bounds the file, in bytes.
const maxFile = 4 << 20

// Load reads the file at path. Environment variables are looked up with
// lookup: ${VAR} in the file, and EDGE_DATABASE_PATH for database.path and so
// on. Flags are settings by their names; they go before the environment, and
// that before the file. Its error is a Problems, or says that the file cannot
// be read.
func Load(path string, lookup func(string) (string, bool), flags map[string]Flag) (*Config, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	return parse(f, lookup, flags)
}

// A Flag of the command line is given instead of a setting.
type Flag struct{ Name, Value string }

// LoadWithoutSecrets is Load for one who does not connect: the file may name
// variables that this environment has not set.
func LoadWithoutSecrets(path string, lookup func(string) (string, bool)) (*Config, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	f.lenient = true
	return parse(f, lookup, nil)
}

// DatabasePath is the setting database.path alone, however wrong or unknown
// the others are.
func DatabasePath(path string, lookup func(string) (string, bool)) (string, error) {
	f, err := open(path)
	if err != nil {
		return "", err
	}
	c := &Config{file: f}
	if err := f.read(); err != nil {
		return "", Problems{f.problem(err)}
	}
	if len(f.tree.Docs) > 0 && f.tree.Docs[0].Body != nil {
		at, err := yaml.PathString("$.database.path")
		if err != nil {
			return "", err
		}
		if n, err := at.FilterNode(f.tree.Docs[0].Body); err == nil && n != nil {
			text, ok := scalar(n)
			if !ok {
				return "", Problems{f.at(n.GetToken(), "a text is wanted here")}
			}
			if c.Database.Path, err = expandText(text, lookup); err != nil {
				return "", Problems{f.at(n.GetToken(), "%v", err)}
			}
		}
	}
	if text, ok := lookup(EnvName("database.path")); ok {
		c.Database.Path = text
	}
	v := &validator{f: f}
	if v.database(&c.Database); len(v.problems) > 0 {
		return "", v.problems
	}
	c.resolvePaths(lookup)
	return c.Database.Path, nil
}

// open reads the file at path.
func open(path string) (*file, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, fmt.Errorf("%s is a directory: name the file in it", path)
	case info.Size() > maxFile:
		return nil, fmt.Errorf("%s is %d bytes long: this is not a configuration", path, info.Size())
	}
	source, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	return &file{name: path, dir: filepath.Dir(abs), source: source, holds: reflect.TypeFor[Config]()}, nil
}

// parse is Load once the file was read.
func parse(f *file, lookup func(string) (string, bool), flags map[string]Flag) (*Config, error) {
	c := &Config{file: f}
	if err := f.read(); err != nil {
		return nil, Problems{f.problem(err)}
	}
	if len(f.tree.Docs) > 1 {
		return nil, Problems{f.at(f.tree.Docs[1].Start, "a second document begins here: a configuration is one")}
	}
	var body ast.Node
	if len(f.tree.Docs) == 1 {
		body = f.tree.Docs[0].Body
	}
	if body != nil {
		if problems := f.expand(body, lookup); len(problems) > 0 {
			return nil, problems
		}
		if err := guarded(func() error { return yaml.NodeToValue(body, c, yaml.Strict()) }); err != nil {
			return nil, Problems{f.problem(err)}
		}
	}
	if problems := c.overlay(lookup, flags); len(problems) > 0 {
		return nil, problems
	}
	c.setDefaults()
	c.resolvePaths(lookup)
	if problems := c.validate(); len(problems) > 0 {
		return nil, problems
	}
	return c, nil
}

// read parses the source. Tags have no meaning here, and the library takes some
// of them badly.
func (f *file) read() error {
	err := guarded(func() (err error) {
		f.tree, err = parser.ParseBytes(f.source, 0)
		return err
	})
	if err != nil {
		return err
	}
	for _, doc := range f.tree.Docs {
		ast.Walk(visitor(func(n ast.Node) bool {
			if tag, ok := n.(*ast.TagNode); ok && err == nil {
				err = misread(tag, "a tag (%s) has no meaning here: put a text that begins with ! into quotes", tag.Start.Value)
			}
			return true
		}), doc)
	}
	return err
}

// guarded makes an error of a panic: a file that the YAML library cannot bear
// must not end a daemon that reads its configuration again.
func guarded(fn func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("this is no YAML that can be read (%v)", r)
		}
	}()
	return fn()
}

// resolvePaths makes relative paths absolute. In those of the section nats ~
// and $VAR are expanded before, not after the folder stands in front of them.
func (c *Config) resolvePaths(lookup func(string) (string, bool)) {
	paths := []*string{&c.NATS.Creds, &c.NATS.NKey, &c.NATS.TLS.CA, &c.NATS.TLS.Cert, &c.NATS.TLS.Key}
	for i, p := range paths {
		switch path, err := natsconn.ExpandPath(*p, lookup); {
		case err != nil, path == "":
			paths[i] = new(string) // natsconn says what is wrong
		default:
			*p = path
		}
	}
	paths = append(paths, &c.Database.Path, &c.Migrations)
	for i := range c.Consumers {
		paths = append(paths, &c.Consumers[i].Schema)
	}
	for _, p := range paths {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(c.file.dir, *p)
		}
	}
}

// Name is the path of the file, as it was given to Load.
func (c *Config) Name() string { return c.file.name }

// problem places an error of the YAML library.
func (f *file) problem(err error) Problem {
	var placed yaml.Error
	if !errors.As(err, &placed) || placed.GetToken() == nil {
		return Problem{File: f.name, Message: err.Error()}
	}
	t, message := placed.GetToken(), placed.GetMessage()
	var unknown *yaml.UnknownFieldError
	if errors.As(err, &unknown) {
		message = fmt.Sprintf("there is no setting %q", t.Value)
		if near := nearest(t.Value, keysOf(f.holds)); near != "" {
			message += fmt.Sprintf("; did you mean %q?", near)
		} else if strings.Contains(t.Value, " ") {
			message += "; if this is a text with a colon in it, put it into quotes"
		}
	}
	var kind *yaml.TypeError
	if errors.As(err, &kind) {
		message = fmt.Sprintf("%s is wanted here", wanted(kind.DstType))
	}
	var shape *yaml.UnexpectedNodeTypeError
	if errors.As(err, &shape) {
		message = fmt.Sprintf("a %s is wanted here, this is a %s", strings.ToLower(shape.Expected.YAMLName()), strings.ToLower(shape.Actual.YAMLName()))
	}
	return f.at(t, "%s", message)
}

// wanted names a Go type for people.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64, reflect.Uint64, reflect.Float64:
		return "a number"
	case reflect.String:
		return "a text"
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "a mapping (indented lines of key: value)"
	case reflect.Pointer:
		return wanted(t.Elem())
	}
	return t.String()
}

// at is a problem at a token.
func (f *file) at(t *token.Token, format string, args ...any) Problem {
	p := Problem{File: f.name, Message: fmt.Sprintf(format, args...)}
	if t == nil || t.Position == nil {
		return p
	}
	p.Line, p.Column = t.Position.Line, t.Position.Column
	if lines := strings.Split(string(f.source), "\n"); p.Line >= 1 && p.Line <= len(lines) {
		p.Source = hideSecret(strings.TrimSuffix(lines[p.Line-1], "\r"))
	}
	return p
}

// hideSecret hides the value in a line that holds one.
func hideSecret(line string) string {
	lower := strings.ToLower(line)
	for _, key := range []string{"password:", "token:"} {
		if i := strings.Index(lower, key); i >= 0 {
			return line[:i+len(key)] + " (hidden)"
		}
	}
	return line
}

// in is a problem at a path like $.consumers[0].name, or at the nearest place
// above it that is in the file.
// What a variable or a flag has set is blamed on that.
func (f *file) in(path, format string, args ...any) Problem {
	setting, note, message := strings.TrimPrefix(path, "$."), "", fmt.Sprintf(format, args...)
	for _, name := range slices.Sorted(maps.Keys(f.overlaid)) {
		if strings.HasPrefix(message, name+": ") {
			return Problem{File: f.overlaid[name], Message: message}
		}
		if setting == name || strings.HasPrefix(setting, name+"[") {
			return Problem{File: f.overlaid[name], Message: name + ": " + message}
		}
		if strings.HasPrefix(name, setting+".") {
			note += fmt.Sprintf("; %s is set by %s", name, f.overlaid[name])
		}
	}
	format, args = "%s%s", []any{message, note}
	for at := path; at != "$" && at != "" && f.tree != nil && len(f.tree.Docs) == 1; at = at[:strings.LastIndexAny(at, ".[")] {
		p, err := yaml.PathString(at)
		if err != nil {
			continue
		}
		if n, err := p.FilterNode(f.tree.Docs[0].Body); err == nil && n != nil {
			return f.at(first(n), format, args...)
		}
	}
	return Problem{File: f.name, Message: strings.TrimPrefix(path, "$.") + ": " + fmt.Sprintf(format, args...)}
}

// first is the token where a node begins.
func first(n ast.Node) *token.Token {
	switch n := n.(type) {
	case *ast.MappingNode:
		if len(n.Values) > 0 && !n.IsFlowStyle {
			return first(n.Values[0])
		}
	case *ast.MappingValueNode:
		return n.Key.GetToken()
	}
	return n.GetToken()
}

// keysOf are the names of all settings in a type and below.
func keysOf(t reflect.Type) (keys []string) {
	seen := map[reflect.Type]bool{}
	var walk func(reflect.Type)
	walk = func(t reflect.Type) {
		switch t.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			walk(t.Elem())
			return
		case reflect.Struct:
		default:
			return
		}
		if seen[t] {
			return
		}
		seen[t] = true
		for f := range t.Fields() {
			if key := f.Tag.Get("yaml"); key != "" {
				keys = append(keys, key)
				walk(f.Type)
			}
		}
	}
	if t != nil {
		walk(t)
	}
	return append(keys, "sequence", "time")
}

// nearest is the name that is hardly different from s, "" when none is.
func nearest(s string, names []string) (best string) {
	limit := max(1, min(len(s)/3, 3)) + 1
	for _, name := range names {
		if d := distance(strings.ToLower(s), name); d < limit {
			best, limit = name, d
		}
	}
	return best
}

// distance is how many letters must be added, removed, changed or swapped with
// the next to make b of a (optimal string alignment).
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range b {
		rows[0][j+1] = j + 1
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

// Unique leaves out what is said twice: two consumers may share a handler.
func (ps Problems) Unique() Problems {
	seen := map[Problem]bool{}
	return slices.DeleteFunc(ps, func(p Problem) bool {
		had := seen[p]
		seen[p] = true
		return had
	})
}
