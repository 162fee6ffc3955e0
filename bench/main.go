// Command bench measures the inbox beside what it could be replaced by, and
// writes what it found into docs/benchmarks.md.
//
// All contenders of a case take turns in one run, on the same events, with the
// same durability and the same INSERT. A machine whose speed changes within
// minutes changes it for all of them: the ratios are what counts, and they are
// taken within each round.
//
//	go run . -list                  what there is
//	go run . -quick                 all of it with few messages, to see that it works
//	go run . -run contenders,fsync  these cases; their results go to results/
//	go run . -report                the document again, from the results that are there
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
)

// settings are what the flags say.
type settings struct {
	quick    bool
	rounds   int
	messages int
	dir      string // where databases and streams lie while they are measured
	results  string
	docs     string
	binary   string // edge-consumer; "" builds it
}

// A benchCase measures one thing. Its results are rendered apart, so that the
// document can be made again without measuring.
type benchCase struct {
	name    string
	title   string
	about   string // how it is measured, for the document
	minutes int    // what a run takes, roughly
	measure func(l *lab)
	render  func(r *result) section
}

var cases = []benchCase{
	contendersCase, callsCase, latencyCase, fsyncCase,
	payloadsCase, idsCase, duplicatesCase, failuresCase,
	footprintCase, storefirstCase, identitiesCase,
}

func main() {
	if child := os.Getenv("BENCH_CHILD"); child != "" {
		runChild(child)
		return
	}
	var s settings
	run := flag.String("run", "all", "cases to run, comma-separated")
	list := flag.Bool("list", false, "list the cases")
	report := flag.Bool("report", false, "only write the document again, from the saved results")
	flag.BoolVar(&s.quick, "quick", false, "few messages, one round, nothing written: does it work?")
	flag.IntVar(&s.rounds, "rounds", 5, "rounds; of each figure the median is taken")
	flag.IntVar(&s.messages, "messages", 100_000, "messages of a round; slow contenders get a part of them")
	flag.StringVar(&s.dir, "dir", "scratch", "where databases and streams lie while they are measured: a real disk")
	flag.StringVar(&s.results, "results", "results", "where results are kept")
	flag.StringVar(&s.docs, "docs", "../docs", "where benchmarks.md and its plots are written")
	flag.StringVar(&s.binary, "binary", "", "edge-consumer to measure; built from .. by default")
	flag.Parse()

	if *list {
		for _, c := range cases {
			fmt.Printf("%-12s %4d min  %s\n", c.name, c.minutes, c.title)
		}
		return
	}
	if err := bench(s, *run, *report); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func bench(s settings, run string, report bool) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if s.quick {
		s.rounds, s.messages = 1, min(s.messages, 600)
	}
	if !report {
		wanted, err := choose(run)
		if err != nil {
			return err
		}
		// A folder of this run alone, which goes away with it.
		if err := os.MkdirAll(s.dir, 0o755); err != nil {
			return err
		}
		if s.dir, err = os.MkdirTemp(s.dir, "run-"); err != nil {
			return err
		}
		if s.dir, err = filepath.Abs(s.dir); err != nil {
			return err
		}
		defer os.RemoveAll(s.dir)
		for _, c := range wanted {
			if err := runCase(ctx, s, c, os.Stdout); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	if s.quick {
		return nil
	}
	return writeReport(s)
}

func choose(run string) ([]benchCase, error) {
	if run == "all" {
		return cases, nil
	}
	var wanted []benchCase
	for name := range strings.SplitSeq(run, ",") {
		i := slices.IndexFunc(cases, func(c benchCase) bool { return c.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no case %q; -list shows them", name)
		}
		wanted = append(wanted, cases[i])
	}
	return wanted, nil
}

// runCase measures a case, shows what came of it, and saves it.
func runCase(ctx context.Context, s settings, c benchCase, out io.Writer) (err error) {
	defer func() {
		if r := recover(); r != nil {
			f, ok := r.(failure)
			if !ok {
				panic(r)
			}
			err = f.error
		}
	}()
	fmt.Fprintf(out, "== %s: %s\n", c.name, c.title)
	begun := time.Now()
	l := &lab{settings: s, ctx: ctx, out: out, result: newResult(c.name, s)}
	defer l.close()
	c.measure(l)
	l.result.Minutes = time.Since(begun).Minutes()
	if !s.quick {
		if err := l.result.save(s.results); err != nil {
			return err
		}
	}
	sec := c.render(l.result)
	fmt.Fprintf(out, "\n%s\n(%s)\n\n", sec.markdown(""), time.Since(begun).Round(time.Second))
	return nil
}

// A failure is an error on its way to runCase: a measurement in which anything
// goes wrong is none.
type failure struct{ error }

func must(err error) {
	if err != nil {
		panic(failure{fmt.Errorf("%w\n%s", err, debug.Stack())})
	}
}

func get[T any](v T, err error) T {
	must(err)
	return v
}

func require(ok bool, format string, args ...any) {
	if !ok {
		must(fmt.Errorf(format, args...))
	}
}
