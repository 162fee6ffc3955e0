package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"edge.example/inbox"
	"edge.example/inbox/cmd/edge-consumer/internal/sqlhandler"
)

// validate checks what can be checked without a database and a network.
func (c *Config) validate() Problems {
	v := &validator{f: c.file}
	v.database(&c.Database)
	v.oneOf("$.log.level", c.Log.Level, "debug", "info", "warn", "error")
	v.oneOf("$.log.format", c.Log.Format, "", "text", "json")
	if err := c.HTTP.Check(); err != nil {
		v.bad("$.http", "%v", err)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Handlers)) {
		h := c.Handlers[name]
		path := "$.handlers." + name
		if len(h.SQL) == 0 {
			v.bad(path, "handler %q has no sql", name)
		}
		v.handler(path, &h)
	}
	if len(c.Consumers) == 0 {
		v.bad("$.consumers", "there is no consumer: name at least one")
	}
	seen := map[string]bool{}
	for i := range c.Consumers {
		v.consumer(fmt.Sprintf("$.consumers[%d]", i), &c.Consumers[i], c.Handlers, seen)
	}
	return v.problems
}

type validator struct {
	f        *file
	problems Problems
}

func (v *validator) bad(path, format string, args ...any) {
	v.problems = append(v.problems, v.f.in(path, format, args...))
}

func (v *validator) oneOf(path, value string, allowed ...string) {
	if slices.Contains(allowed, value) {
		return
	}
	text := fmt.Sprintf("%q is none of %s", value, strings.Join(slices.DeleteFunc(allowed, func(s string) bool { return s == "" }), ", "))
	if near := nearest(value, allowed); near != "" {
		text += fmt.Sprintf("; did you mean %q?", near)
	}
	v.bad(path, "%s", text)
}

func (v *validator) database(d *Database) {
	if d.Path == "" {
		v.bad("$.database.path", "the path of the SQLite file is missing: database: {path: edge.db}")
	}
	if d.CacheSize < 0 {
		v.bad("$.database.cache_size", "is negative")
	}
}

func (v *validator) consumer(path string, c *Consumer, handlers map[string]Handler, seen map[string]bool) {
	switch {
	case c.Name == "":
		v.bad(path, "a consumer needs a name")
	case seen[c.Name]:
		v.bad(path+".name", "there are two consumers %q", c.Name)
	case len(c.Name) > 64 || strings.ContainsFunc(c.Name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	}):
		v.bad(path+".name", "%q: a consumer's name has letters, digits, - and _, 64 at most", c.Name)
	}
	seen[c.Name] = true
	if c.Stream == "" {
		v.bad(path, "consumer %q needs a stream", c.Name)
	} else if strings.ContainsAny(c.Stream, " .*>/\\\t\r\n") {
		v.bad(path+".stream", "%q: the name of a stream has no spaces, dots, slashes, * or >", c.Stream)
	}
	if strings.ContainsAny(c.Durable, " .*>/\\\t\r\n") {
		v.bad(path+".durable", "%q: the name of a durable consumer has no spaces, dots, slashes, * or >", c.Durable)
	}
	v.subjects(path+".subjects", c.Subjects)
	if s := c.CreateStream; s != nil {
		if len(s.Subjects) == 0 {
			v.bad(path+".create_stream", "the stream needs subjects")
		}
		v.subjects(path+".create_stream.subjects", s.Subjects)
		v.oneOf(path+".create_stream.storage", s.Storage, "", "file", "memory")
		v.oneOf(path+".create_stream.discard", s.Discard, "", "old", "new")
		if s.Replicas < 0 || s.Replicas > 5 {
			v.bad(path+".create_stream.replicas", "is %d: 1 to 5", s.Replicas)
		}
	}
	if c.Identity.JSON != "" {
		v.jsonPath(path+".identity.json", c.Identity.JSON)
	}
	if c.Key.Header != "" && c.Key.JSON != "" {
		v.bad(path+".key", "give a header or a json path, not both")
	}
	if c.Key.JSON != "" {
		v.jsonPath(path+".key.json", c.Key.JSON)
	}
	if c.Schema != "" {
		if _, err := c.PayloadSchema(); err != nil {
			v.bad(path+".schema", "%v", err)
		}
	}
	v.retry(path+".retry", &c.Retry)
	v.oneOf(path+".conflicts", c.Conflicts, "keep", "ignore")
	if c.AckWait != 0 && c.AckWait < 1e8 {
		v.bad(path+".ack_wait", "is %v: at least 100ms", c.AckWait)
	}
	if c.Prefetch < 0 || c.Prefetch > 1_000_000 {
		v.bad(path+".prefetch", "is %d: 1 to 1000000", c.Prefetch)
	}
	switch {
	case c.Handler == "" && len(c.SQL) == 0:
		v.bad(path, "consumer %q does nothing: give it sql, or the name of a handler", c.Name)
	case c.Handler != "" && (len(c.SQL) > 0 || c.PermanentIf != nil):
		v.bad(path+".handler", "give sql (with permanent_if) or a handler, not both")
	case c.Handler != "":
		if _, ok := handlers[c.Handler]; !ok {
			text := fmt.Sprintf("there is no handler %q", c.Handler)
			if near := nearest(c.Handler, slices.Sorted(maps.Keys(handlers))); near != "" {
				text += fmt.Sprintf("; did you mean %q?", near)
			}
			v.bad(path+".handler", "%s", text)
		}
	default:
		v.handler(path, &Handler{c.SQL, c.PermanentIf})
	}
}

func (v *validator) jsonPath(path, value string) {
	if _, err := inbox.KeyFromJSON(value); err != nil {
		v.bad(path, "%v", strings.TrimPrefix(err.Error(), "inbox: key path: "))
	}
}

func (v *validator) retry(path string, r *Retry) {
	if r.Multiplier != 0 && r.Multiplier < 1 {
		v.bad(path+".multiplier", "is %v: at least 1", r.Multiplier)
	}
	if r.Jitter != nil && (*r.Jitter < 0 || *r.Jitter > 1) {
		v.bad(path+".jitter", "is %v: 0 to 1", *r.Jitter)
	}
	if r.Attempts < -1 {
		v.bad(path+".attempts", "is %d: -1 for no limit", r.Attempts)
	}
	if r.Max != 0 && r.Max < r.Initial {
		v.bad(path+".max", "is %v, shorter than initial, %v", r.Max, r.Initial)
	}
}

// subjects checks the syntax of NATS subjects.
func (v *validator) subjects(path string, subjects []string) {
	for i, s := range subjects {
		tokens := strings.Split(s, ".")
		for j, t := range tokens {
			wild := strings.ContainsAny(t, "*>") && len(t) > 1
			if t == "" || strings.ContainsAny(t, " \t\r\n") || wild || t == ">" && j < len(tokens)-1 {
				v.bad(fmt.Sprintf("%s[%d]", path, i), "%q is no NATS subject: words with dots between them, * for one, > for all that follow at the end", s)
				break
			}
		}
	}
}

func (v *validator) handler(path string, h *Handler) {
	check := func(path string, causes []string) {
		for i, c := range causes {
			v.oneOf(fmt.Sprintf("%s[%d]", path, i), c, slices.Clone(sqlhandler.Causes)...)
		}
	}
	check(path+".permanent_if", h.PermanentIf)
	for i, s := range h.SQL {
		check(fmt.Sprintf("%s.sql[%d].permanent_if", path, i), s.PermanentIf)
	}
	_, err := h.Compile()
	v.sql(path, err)
}

// sql places the errors of a handler's statements.
func (v *validator) sql(path string, err error) {
	if err == nil {
		return
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		v.bad(path, "%v", err)
		return
	}
	for _, e := range joined.Unwrap() {
		var at *sqlhandler.Error
		if !errors.As(e, &at) {
			v.bad(path, "%v", e)
			continue
		}
		v.bad(fmt.Sprintf("%s.sql[%d].%s", path, at.Index, at.Field), "%s: %v", at.Field, at.Err)
	}
}

// Compile makes the handler. Its errors are those of sqlhandler.New.
func (h *Handler) Compile() (*sqlhandler.Handler, error) {
	list := make([]sqlhandler.Statement, len(h.SQL))
	for i, s := range h.SQL {
		list[i] = sqlhandler.Statement(s)
	}
	return sqlhandler.New(list, h.PermanentIf)
}

// HandlerOf is the handler of consumer number i, and its place in the file.
func (c *Config) HandlerOf(i int) (h Handler, path string) {
	k := &c.Consumers[i]
	if k.Handler != "" {
		return c.Handlers[k.Handler], "$.handlers." + k.Handler
	}
	return Handler{k.SQL, k.PermanentIf}, fmt.Sprintf("$.consumers[%d]", i)
}

// SQLProblems places the errors of a handler's statements, as New and Prepare
// of sqlhandler give them, in the file.
func (c *Config) SQLProblems(path string, err error) Problems {
	v := &validator{f: c.file}
	v.sql(path, err)
	return v.problems
}

// At is a problem at a path of the file, like $.migrations.
func (c *Config) At(path string, err error) Problem { return c.file.in(path, "%v", err) }
