package main

import (
	"context"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if child := os.Getenv("BENCH_CHILD"); child != "" {
		runChild(child)
		return
	}
	os.Exit(m.Run())
}

func TestMedianAndRatio(t *testing.T) {
	a := &point{Figures: map[string][]float64{rate: {10, 20, 90}}}
	b := &point{Figures: map[string][]float64{rate: {5, 20, 30}}}
	for _, tc := range []struct{ got, want float64 }{
		{median([]float64{3, 1, 2}), 2},
		{median([]float64{4, 1, 2, 3}), 2.5},
		{first(ratio(a, b, rate)), 2}, // of 2, 1 and 3, not 20/20
	} {
		if tc.got != tc.want {
			t.Errorf("%v, not %v", tc.got, tc.want)
		}
	}
	if _, ok := ratio(a, nil, rate); ok {
		t.Error("a ratio to nothing")
	}
}

func first[T any](v T, _ bool) T { return v }

func TestQuantile(t *testing.T) {
	var ms []time.Duration
	for i := range 1000 {
		ms = append(ms, time.Duration(i+1)*time.Millisecond)
	}
	for q, want := range map[float64]float64{0: 1, .5: 500, .99: 990, .999: 999, 1: 1000} {
		if got := quantile(ms, q); got != want {
			t.Errorf("quantile %v is %v, not %v", q, got, want)
		}
	}
}

func TestShown(t *testing.T) {
	for v, want := range map[float64]string{0.1234: "0.123", 9.876: "9.88", 99.96: "100", 999.7: "1000", 1234: "1,230", 56789: "56,800", 1234567: "1,230,000"} {
		if got := shown(v, true); got != want {
			t.Errorf("%v is shown as %s, not %s", v, got, want)
		}
	}
}

func TestEvents(t *testing.T) {
	for _, kind := range []string{"random", "ulid", "sequential"} {
		a, b := makeEvents(1000, kind, 10, .9), makeEvents(1000, kind, 10, .9)
		if !slices.Equal(a.ids, b.ids) {
			t.Errorf("%s: not the same events", kind)
		}
		ids := slices.Clone(a.ids[:a.unique])
		if kind != "random" && !slices.IsSorted(ids) {
			t.Errorf("%s ids are not in order", kind)
		}
		slices.Sort(ids)
		if n := len(slices.Compact(ids)); n != 100 || a.different(1000) != 100 || a.different(50) != 50 {
			t.Errorf("%s: %d different ids", kind, n)
		}
	}
}

func TestPlot(t *testing.T) {
	for _, p := range []plot{
		{title: "a < b", xLog: true, yLog: true, curves: []curve{{"one", []float64{1, 1000}, []float64{0.5, 40_000}}}},
		{curves: []curve{{"flat", []float64{0, 5, 30}, []float64{7, 7, 7}}}},
		{curves: []curve{{"a point", []float64{3}, []float64{0}}}},
		{},
	} {
		text := p.svg()
		d := xml.NewDecoder(strings.NewReader(text))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%v in %s", err, text)
			}
		}
		if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
			t.Error(text)
		}
	}
}

// Every commit takes as long as the slow disk's sync, at the least.
func TestSlowSync(t *testing.T) {
	slowSync(100 * time.Millisecond)
	defer slowSync(0)
	db := openDB(t.TempDir())
	defer db.Close()
	before, start := syncs(), time.Now()
	for range 3 {
		get(db.Exec(insertOrder, "id", []byte("body")))
	}
	if n, took := syncs()-before, time.Since(start); n < 3 || took < 300*time.Millisecond {
		t.Errorf("%d syncs in %v", n, took)
	}
}

// Every case runs, counts the effects it ought to have, and can be shown.
func TestCases(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute or two")
	}
	s := settings{quick: true, rounds: 1, messages: 200, dir: t.TempDir()}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			if err := runCase(context.Background(), s, c, &out); err != nil {
				t.Fatalf("%v\n%s", err, &out)
			}
		})
	}
}

// The document is made of what was measured, and says what was not.
func TestReport(t *testing.T) {
	s := settings{results: t.TempDir(), docs: t.TempDir(), rounds: 2, messages: 10}
	r := newResult("fsync", s)
	for i, at := range []string{"as it is", "+5 ms"} {
		for j, name := range []string{"edge inbox", "hand-written"} {
			p := r.point(name, at, float64(5*i))
			p.add(rate, float64(1000/(j+1)))
			p.add(rate, float64(2000/(j+1)))
		}
	}
	if err := r.save(s.results); err != nil {
		t.Fatal(err)
	}
	if err := writeReport(s); err != nil {
		t.Fatal(err)
	}
	text := string(get(os.ReadFile(filepath.Join(s.docs, "benchmarks.md"))))
	for _, want := range []string{
		"| +5 ms | 1,500 | 750 | 2.00 × |", "](benchmarks/fsync.svg)", "`make bench RUN=latency`", "## Where", "Tried, and did not help",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if _, err := os.Stat(filepath.Join(s.docs, "benchmarks", "fsync.svg")); err != nil {
		t.Error(err)
	}
}
