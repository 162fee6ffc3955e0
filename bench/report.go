package main

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A section is the document's part on one case.
type section struct {
	tables []table
	plots  []plot
	notes  []string
}

// A table, the first column of which is left-aligned.
type table struct {
	title   string
	columns []string
	rows    [][]string
}

func (t *table) markdown() string {
	var b strings.Builder
	if t.title != "" {
		fmt.Fprintf(&b, "%s\n\n", t.title)
	}
	fmt.Fprintf(&b, "| %s |\n|---|%s\n", strings.Join(t.columns, " | "), strings.Repeat("---:|", len(t.columns)-1))
	for _, r := range t.rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(r, " | "))
	}
	return b.String()
}

// markdown is the section's text; plots lie in the folder called plots, "" for
// a text without them.
func (s *section) markdown(plots string) string {
	var parts []string
	for _, t := range s.tables {
		parts = append(parts, t.markdown())
	}
	for _, p := range s.plots {
		if plots != "" {
			parts = append(parts, fmt.Sprintf("![%s](%s/%s.svg)\n", p.title, plots, p.file))
		}
	}
	for _, n := range s.notes {
		parts = append(parts, n+"\n")
	}
	return strings.Join(parts, "\n")
}

// writeReport makes the document and its plots from the saved results.
func writeReport(s settings) error {
	const plots = "benchmarks"
	var body strings.Builder
	var measured []*result
	byName := map[string]*result{}
	folder := filepath.Join(s.docs, plots)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for _, c := range cases {
		fmt.Fprintf(&body, "## %s\n\n%s\n\n", c.title, c.about)
		r, err := load(s.results, c.name)
		if err != nil {
			return err
		}
		if r == nil {
			fmt.Fprintf(&body, "Not measured yet: `make bench RUN=%s`, about %d minutes.\n\n", c.name, c.minutes)
			continue
		}
		measured, byName[c.name] = append(measured, r), r
		sec := c.render(r)
		fmt.Fprintf(&body, "%s\nMeasured %s at commit %s, rounds: %d. Again: `make bench RUN=%s`, about %d minutes.\n\n", sec.markdown(plots), r.Date, r.Versions[inboxModule], r.Rounds, c.name, c.minutes)
		for _, p := range sec.plots {
			if err := os.WriteFile(filepath.Join(folder, p.file+".svg"), []byte(p.svg()), 0o644); err != nil {
				return err
			}
		}
	}
	text := docIntro + "\n" + targetTable(byName) + "\n" + machines(measured) + "\n" + body.String() + docPeers + "\n" + docTried
	return os.WriteFile(filepath.Join(s.docs, "benchmarks.md"), []byte(text), 0o644)
}

// inboxModule is what all this is about.
const inboxModule = "edge.example/inbox"

// machines says where and with what versions the results came about.
func machines(rs []*result) string {
	if len(rs) == 0 {
		return "## Where\n\nNothing is measured yet.\n"
	}
	where, versions := map[machine][]string{}, map[string]map[string]bool{}
	for _, r := range rs {
		where[r.Machine] = append(where[r.Machine], r.Case)
		for m, v := range r.Versions {
			if m == inboxModule {
				continue // said with each case
			}
			if versions[m] == nil {
				versions[m] = map[string]bool{}
			}
			versions[m][v] = true
		}
	}
	t := table{columns: []string{"", "CPU", "cores", "system", "Go"}}
	for _, m := range slices.SortedFunc(maps.Keys(where), func(a, b machine) int { return strings.Compare(a.CPU+a.OS+a.Go, b.CPU+b.OS+b.Go) }) {
		cases := strings.Join(where[m], ", ")
		if len(where) == 1 {
			cases = "all cases"
		}
		t.rows = append(t.rows, []string{cases, m.CPU, fmt.Sprint(m.Cores), m.OS, m.Go})
	}
	v := table{columns: []string{"module", "version"}}
	for _, m := range slices.Sorted(maps.Keys(versions)) {
		v.rows = append(v.rows, []string{"`" + m + "`", strings.Join(slices.Sorted(maps.Keys(versions[m])), "; ")})
	}
	return "## Where\n\n" + t.markdown() + "\n" + v.markdown()
}

// bySeries is a table with a row for each series: the medians of figures, and
// with ratioOf how many times the others ours is, by the ratios in each round.
func (r *result) bySeries(title string, figures []string, ratioOf string) table {
	t := table{title: title, columns: append([]string{""}, figures...)}
	if ratioOf != "" {
		t.columns = append(t.columns, "edge inbox is")
	}
	names := r.series()
	first := names[0]
	for _, name := range names {
		p := r.at(name, "")
		row := []string{name}
		for _, f := range figures {
			row = append(row, shown(p.median(f)))
		}
		if ratioOf != "" {
			row = append(row, times(ratio(r.at(first, ""), p, ratioOf)))
		}
		t.rows = append(t.rows, row)
	}
	return t
}

// byPlace is a table with a row for each place and, for each series, a figure's
// median and how many times it ours is there.
func (r *result) byPlace(title, place, figure string, ratios bool) table {
	t := table{title: title, columns: []string{place}}
	names := r.series()
	for i, name := range names {
		t.columns = append(t.columns, name)
		if ratios && i > 0 {
			t.columns = append(t.columns, "edge inbox is")
		}
	}
	for _, at := range r.places() {
		row := []string{at}
		for i, name := range names {
			row = append(row, shown(r.at(name, at).median(figure)))
			if ratios && i > 0 {
				row = append(row, times(ratio(r.at(names[0], at), r.at(name, at), figure)))
			}
		}
		t.rows = append(t.rows, row)
	}
	return t
}

// curves draws a figure's medians over the places.
func (r *result) curves(p plot, figure string) plot {
	for _, name := range r.series() {
		c := curve{name: name}
		for _, at := range r.places() {
			q := r.at(name, at)
			if v, ok := q.median(figure); ok {
				c.x, c.y = append(c.x, q.X), append(c.y, v)
				if !slices.ContainsFunc(p.ticks, func(t tick) bool { return t.at == q.X }) {
					p.ticks = append(p.ticks, tick{q.X, at})
				}
			}
		}
		if len(c.x) > 0 {
			p.curves = append(p.curves, c)
		}
	}
	return p
}

// shown is a figure for people: three digits, thousands apart.
func shown(v float64, ok bool) string {
	switch {
	case !ok:
		return ""
	case math.Abs(v) >= 1000:
		return thousands(int64(math.Round(v/math.Pow(10, math.Floor(math.Log10(math.Abs(v)))-2)) * math.Pow(10, math.Floor(math.Log10(math.Abs(v)))-2)))
	}
	return trim(v)
}

func thousands(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func times(v float64, ok bool) string {
	switch {
	case !ok:
		return ""
	case v >= 100:
		return fmt.Sprintf("%s ×", thousands(int64(math.Round(v))))
	case v >= 10:
		return fmt.Sprintf("%.0f ×", v)
	}
	return fmt.Sprintf("%.2f ×", v)
}
