package config

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// misread is an error at a node.
func misread(n ast.Node, format string, args ...any) error {
	return &yaml.SyntaxError{Message: fmt.Sprintf(format, args...), Token: n.GetToken()}
}

// scalar is the text of a node that is neither a list nor a mapping.
func scalar(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case ast.ScalarNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// A Duration is written 1500ms, 30s, 5m, 12h or 7d, and combined: 1d12h.
type Duration time.Duration

var days = regexp.MustCompile(`^(\d+)d`)

func parseDuration(s string) (time.Duration, error) {
	var d time.Duration
	rest := s
	if m := days.FindStringSubmatch(s); m != nil {
		n, err := strconv.ParseInt(m[1], 10, 64)
		if err != nil || n > 100*365 {
			return 0, fmt.Errorf("%q is too long", s)
		}
		d, rest = time.Duration(n)*24*time.Hour, s[len(m[0]):]
		if rest == "" {
			return d, nil
		}
	}
	more, err := time.ParseDuration(rest)
	if err != nil || more < 0 {
		return 0, fmt.Errorf("%q is not a duration: write 500ms, 30s, 5m, 12h or 7d", s)
	}
	return d + more, nil
}

func (d *Duration) UnmarshalYAML(n ast.Node) error {
	s, ok := scalar(n)
	if !ok {
		return misread(n, "a duration is wanted here: 500ms, 30s, 5m, 12h or 7d")
	}
	v, err := parseDuration(s)
	if err != nil {
		return misread(n, "%v", err)
	}
	*d = Duration(v)
	return nil
}

func (d Duration) String() string { return time.Duration(d).String() }

// A Size is written 512, 64KiB, 10MB or 2GiB.
type Size int64

func (z *Size) UnmarshalYAML(n ast.Node) error {
	s, ok := scalar(n)
	if !ok {
		return misread(n, "a size is wanted here: 512, 64KiB, 10MB or 2GiB")
	}
	v, err := humanize.ParseBytes(s)
	if err != nil || v > 1<<62 {
		return misread(n, "%q is not a size: write 512, 64KiB, 10MB or 2GiB", s)
	}
	*z = Size(v)
	return nil
}

func (z Size) String() string { return strings.ReplaceAll(humanize.IBytes(uint64(z)), " ", "") }

// Start is where a new durable consumer begins: the first of these that is set,
// or with all the messages that the stream has.
type Start struct {
	New      bool      // with what comes from now on
	Sequence uint64    // with this one
	Time     time.Time // with the first that is not older
}

func (s *Start) UnmarshalYAML(n ast.Node) error {
	const want = "start is all, new, {sequence: 17} or {time: 2026-01-31T12:00:00Z}"
	if text, ok := scalar(n); ok {
		switch text {
		case "all":
		case "new":
			s.New = true
		default:
			return misread(n, "%q: %s", text, want)
		}
		return nil
	}
	var at struct {
		Sequence uint64 `yaml:"sequence"`
		Time     string `yaml:"time"`
	}
	if err := yaml.NodeToValue(n, &at, yaml.Strict()); err != nil {
		return err
	}
	if (at.Sequence == 0) == (at.Time == "") {
		return misread(n, "%s", want)
	}
	s.Sequence = at.Sequence
	if at.Time != "" {
		t, err := time.Parse(time.RFC3339, at.Time)
		if err != nil {
			return misread(n, "time %q: write 2026-01-31T12:00:00Z", at.Time)
		}
		s.Time = t
	}
	return nil
}

func (s *Statement) UnmarshalYAML(n ast.Node) error {
	if text, ok := scalar(n); ok {
		s.SQL = text
		return nil
	}
	type plain Statement
	return yaml.NodeToValue(n, (*plain)(s), yaml.Strict())
}
