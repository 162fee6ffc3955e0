package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// A result is what one case measured, as it is saved: every round of every
// figure. What the document says is computed from it.
type result struct {
	Case     string            `json:"case"`
	Date     string            `json:"date"`
	Minutes  float64           `json:"minutes"`
	Rounds   int               `json:"rounds"`
	Messages int               `json:"messages"`
	Machine  machine           `json:"machine"`
	Versions map[string]string `json:"versions"`
	Points   []*point          `json:"points"`
}

// A point is one contender at one place of a curve, or in a table.
type point struct {
	Series  string               `json:"series"`
	At      string               `json:"at,omitempty"`
	X       float64              `json:"x,omitempty"`
	Figures map[string][]float64 `json:"figures"` // a value of each round
}

// A machine is what of it matters; nothing that names it.
type machine struct {
	CPU   string `json:"cpu"`
	Cores int    `json:"cores"`
	OS    string `json:"os"`
	Go    string `json:"go"`
}

func newResult(name string, s settings) *result {
	return &result{
		Case: name, Date: time.Now().UTC().Format(time.DateOnly), Rounds: s.rounds, Messages: s.messages,
		Machine:  machine{cpuModel(), runtime.NumCPU(), system(), runtime.Version()},
		Versions: versions(),
	}
}

// point finds a point, or makes it.
func (r *result) point(series, at string, x float64) *point {
	for _, p := range r.Points {
		if p.Series == series && p.At == at {
			return p
		}
	}
	p := &point{Series: series, At: at, X: x, Figures: map[string][]float64{}}
	r.Points = append(r.Points, p)
	return p
}

func (p *point) add(figure string, v float64) { p.Figures[figure] = append(p.Figures[figure], v) }

// at is the point of a series, nil when it has none there.
func (r *result) at(series, at string) *point {
	i := slices.IndexFunc(r.Points, func(p *point) bool { return p.Series == series && p.At == at })
	if i < 0 {
		return nil
	}
	return r.Points[i]
}

// series and places are in the order in which they were measured.
func (r *result) series() (names []string) {
	for _, p := range r.Points {
		if !slices.Contains(names, p.Series) {
			names = append(names, p.Series)
		}
	}
	return names
}

func (r *result) places() (names []string) {
	for _, p := range r.Points {
		if !slices.Contains(names, p.At) {
			names = append(names, p.At)
		}
	}
	return names
}

// median of a figure; ok says whether it was measured.
func (p *point) median(figure string) (v float64, ok bool) {
	if p == nil || len(p.Figures[figure]) == 0 {
		return 0, false
	}
	return median(p.Figures[figure]), true
}

// ratio is the median of the ratios within each round.
func ratio(a, b *point, figure string) (v float64, ok bool) {
	if a == nil || b == nil {
		return 0, false
	}
	n := min(len(a.Figures[figure]), len(b.Figures[figure]))
	if n == 0 {
		return 0, false
	}
	rs := make([]float64, n)
	for i := range rs {
		rs[i] = a.Figures[figure][i] / b.Figures[figure][i]
	}
	return median(rs), true
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

func (r *result) save(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, r.Case+".json"), append(text, '\n'), 0o644)
}

// load reads a saved result, nil when there is none.
func load(dir, name string) (*result, error) {
	text, err := os.ReadFile(filepath.Join(dir, name+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r := &result{}
	return r, json.Unmarshal(text, r)
}

// versions are those of the modules that are measured.
func versions() map[string]string {
	v := map[string]string{}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	for _, m := range info.Deps {
		switch m.Path {
		case "modernc.org/sqlite", "github.com/nats-io/nats.go", "github.com/nats-io/nats-server/v2",
			"maragu.dev/goqite", "github.com/riverqueue/river", "github.com/riverqueue/river/riverdriver/riversqlite",
			"github.com/mikestefanello/backlite":
			v[m.Path] = m.Version
		}
	}
	if text, err := exec.Command("git", "describe", "--tags", "--always", "--dirty").Output(); err == nil {
		v[inboxModule] = strings.TrimSpace(string(text))
	}
	return v
}

func cpuModel() string { return field("/proc/cpuinfo", "model name", ":", runtime.GOARCH) }

func system() string {
	return strings.Trim(field("/etc/os-release", "PRETTY_NAME", "=", runtime.GOOS), `"`) + ", " + runtime.GOOS + "/" + runtime.GOARCH
}

// field is the value of a name in a file of such lines.
func field(file, name, separator, otherwise string) string {
	text, _ := os.ReadFile(file)
	for line := range strings.Lines(string(text)) {
		k, v, found := strings.Cut(line, separator)
		if found && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return otherwise
}
