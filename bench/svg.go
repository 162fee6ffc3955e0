package main

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// A plot is a few curves over one axis.
type plot struct {
	file, title    string
	xLabel, yLabel string
	xLog, yLog     bool
	curves         []curve
	ticks          []tick // of the x axis; nil: where there are points
}

type curve struct {
	name string
	x, y []float64
}

type tick struct {
	at    float64
	label string
}

const (
	plotWidth, plotHeight          = 760, 400
	plotLeft, plotRight            = 70, 220
	plotTop, plotBottom            = 36, 46
	fontFace, plotInk, plotGridInk = "system-ui, sans-serif", "#333", "#ddd"
)

var colours = []string{"#0b6bcb", "#d1422f", "#2e8b57", "#8a4fbf", "#c98a00", "#0097a7", "#7a7a7a", "#c2185b"}

// svg draws the plot.
func (p *plot) svg() string {
	xs, ys := p.extent(func(c curve) []float64 { return c.x }), p.extent(func(c curve) []float64 { return c.y })
	x := newScale(xs, p.xLog, plotLeft, plotWidth-plotRight, false)
	y := newScale(ys, p.yLog, plotHeight-plotBottom, plotTop, true)
	var b strings.Builder
	text := func(at float64, top float64, anchor, s string, more string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="%s"%s>%s</text>`+"\n", at, top, anchor, more, html.EscapeString(s))
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="%s" font-size="12" fill="%s">`+"\n", plotWidth, plotHeight, fontFace, plotInk)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", plotWidth, plotHeight)
	text(plotLeft, 20, "start", p.title, ` font-size="14" font-weight="600"`)
	for _, v := range y.ticks() {
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="%s"/>`+"\n", plotLeft, plotWidth-plotRight, y.pos(v), y.pos(v), plotGridInk)
		text(plotLeft-6, y.pos(v)+4, "end", short(v), "")
	}
	ticks := p.ticks
	if ticks == nil {
		for _, v := range xs {
			ticks = append(ticks, tick{v, short(v)})
		}
	}
	for _, t := range ticks {
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="%s"/>`+"\n", x.pos(t.at), x.pos(t.at), plotTop, plotHeight-plotBottom, plotGridInk)
		text(x.pos(t.at), plotHeight-plotBottom+16, "middle", t.label, "")
	}
	text((plotLeft+plotWidth-plotRight)/2, plotHeight-8, "middle", p.xLabel, "")
	text(0, 0, "middle", p.yLabel, fmt.Sprintf(` transform="translate(16 %d) rotate(-90)"`, (plotTop+plotHeight-plotBottom)/2))
	for i, c := range p.curves {
		colour := colours[i%len(colours)]
		var points []string
		for j := range c.x {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x.pos(c.x[j]), y.pos(c.y[j])))
		}
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(points, " "), colour)
		if len(points) <= 30 {
			for j := range c.x {
				fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", x.pos(c.x[j]), y.pos(c.y[j]), colour)
			}
		}
		top := float64(plotTop + 10 + 18*i)
		fmt.Fprintf(&b, `<rect x="%d" y="%.1f" width="12" height="3" fill="%s"/>`+"\n", plotWidth-plotRight+12, top-5, colour)
		text(plotWidth-plotRight+30, top, "start", c.name, "")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// extent are the different values of the curves, sorted.
func (p *plot) extent(of func(curve) []float64) (vs []float64) {
	for _, c := range p.curves {
		vs = append(vs, of(c)...)
	}
	slices.Sort(vs)
	return slices.Compact(vs)
}

// A scale places values on an axis.
type scale struct {
	lo, hi   float64 // of the values, or of their logarithms
	from, to float64 // on the picture
	log      bool
}

func newScale(vs []float64, log bool, from, to float64, round bool) scale {
	s := scale{from: from, to: to, log: log}
	if len(vs) == 0 {
		s.hi = 1
		return s
	}
	s.lo, s.hi = s.of(vs[0]), s.of(vs[len(vs)-1])
	if round && log {
		s.lo, s.hi = math.Floor(s.lo), math.Ceil(s.hi)
	} else if round {
		s.lo, s.hi = min(s.lo, 0), s.hi*1.05
	}
	if s.hi <= s.lo {
		s.hi = s.lo + 1
	}
	return s
}

// of is v, or its logarithm; what has none stands at the smallest.
func (s scale) of(v float64) float64 {
	if s.log {
		return math.Log10(max(v, 1e-3))
	}
	return v
}

func (s scale) pos(v float64) float64 { return s.from + (s.of(v)-s.lo)/(s.hi-s.lo)*(s.to-s.from) }

// ticks are round values within the scale.
func (s scale) ticks() (ts []float64) {
	if s.log {
		for e := s.lo; e <= s.hi; e++ {
			ts = append(ts, math.Pow(10, e))
		}
		return ts
	}
	step := math.Pow(10, math.Floor(math.Log10((s.hi-s.lo)/4)))
	for _, m := range []float64{1, 2, 5, 10} {
		if (s.hi-s.lo)/(step*m) <= 6 {
			step *= m
			break
		}
	}
	for v := math.Ceil(s.lo/step) * step; v <= s.hi; v += step {
		ts = append(ts, v)
	}
	return ts
}

// short is a value with three digits or so, and k or M.
func short(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1e6:
		return trim(v/1e6) + "M"
	case a >= 1e4:
		return trim(v/1e3) + "k"
	}
	return trim(v)
}

func trim(v float64) string {
	if math.Abs(v) >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
