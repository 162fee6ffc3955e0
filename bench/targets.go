package main

import "fmt"

// What the inbox is to reach, beside what was measured.

// A target holds when is(measured) does.
type target struct {
	what     string
	measured func(rs map[string]*result) (v float64, ok bool)
	unit     string
	atLeast  float64 // 0: below is the bound
	below    float64
}

func figure(name, series, at, fig string) func(map[string]*result) (float64, bool) {
	return func(rs map[string]*result) (float64, bool) {
		if rs[name] == nil {
			return 0, false
		}
		return rs[name].at(series, at).median(fig)
	}
}

func against(name, other, at string) func(map[string]*result) (float64, bool) {
	return func(rs map[string]*result) (float64, bool) {
		if rs[name] == nil {
			return 0, false
		}
		return ratio(rs[name].at("edge inbox", at), rs[name].at(other, at), rate)
	}
}

var targets = []target{
	{"messages a second, end to end", figure("contenders", "edge inbox", "", rate), "", 60_000, 0},
	{"times the hand-written one", against("contenders", "hand-written", ""), "×", 12, 0},
	{"of the statements alone, by 2,000", against("contenders", "statements alone, by 2,000", ""), "×", .85, 0},
	{"messages a second, syncs of 5 ms", figure("fsync", "edge inbox", "+5 ms", rate), "", 20_000, 0},
	{"times the hand-written one, syncs of 5 ms", against("fsync", "hand-written", "+5 ms"), "×", 100, 0},
	{"p99 at 1,000/s, " + inProcess, figure("latency", "edge inbox", "1,000/s, "+inProcess, "p99"), "ms", 0, 10},
	{"p99 at 1,000/s, " + apart, figure("latency", "edge inbox", "1,000/s, "+apart, "p99"), "ms", 0, 10},
	{"p99 at 10,000/s, " + inProcess, figure("latency", "edge inbox", "10,000/s, "+inProcess, "p99"), "ms", 0, 25},
	{"p99 at 10,000/s, " + apart, figure("latency", "edge inbox", "10,000/s, "+apart, "p99"), "ms", 0, 25},
	{"RSS of edge-consumer at 10,000/s", figure("footprint", "edge-consumer, SQL handler", "", steadyFigure), "MB", 0, 64},
}

func targetTable(rs map[string]*result) string {
	t := table{columns: []string{"target", "bound", "measured", ""}}
	for _, g := range targets {
		bound := fmt.Sprintf("≥ %s %s", shown(g.atLeast, true), g.unit)
		if g.atLeast == 0 {
			bound = fmt.Sprintf("< %s %s", shown(g.below, true), g.unit)
		}
		row := []string{g.what, bound, "", ""}
		if v, ok := g.measured(rs); ok {
			row[2], row[3] = shown(v, ok)+" "+g.unit, "missed"
			if g.atLeast > 0 && v >= g.atLeast || g.atLeast == 0 && v < g.below {
				row[3] = "met"
			}
		}
		t.rows = append(t.rows, row)
	}
	return "## Targets\n\n" + t.markdown() + "\nAllocations (at most 25 a message on the hot path) and statements a message are not\nmeasured here but asserted by the test suite: hotpath_test.go.\n"
}
