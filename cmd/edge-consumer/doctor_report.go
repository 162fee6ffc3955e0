package main

import (
	"fmt"
	"io"
	"strings"
)

// A level is how bad a finding is. The texts are those of the JSON.
type level string

const (
	levelOK       level = "ok"
	levelWarning  level = "warning"
	levelCritical level = "critical"
	levelSkipped  level = "skipped" // not examined: something else must be well first, or it was not asked for
)

// short is the level in a line.
var short = map[level]string{levelOK: "OK", levelWarning: "WARN", levelCritical: "CRIT", levelSkipped: "SKIP"}

// A finding is one check of the doctor, in its JSON too.
type finding struct {
	Level  level  `json:"level"`
	Check  string `json:"check"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy"` // what to do, "" for nothing
}

func (x *examination) add(l level, check, detail, remedy string) {
	x.findings = append(x.findings, finding{l, check, detail, remedy})
}

// A doctorReport is the JSON of the doctor command.
type doctorReport struct {
	Status   level     `json:"status"` // the worst level
	OK       int       `json:"ok"`
	Warning  int       `json:"warning"`
	Critical int       `json:"critical"`
	Skipped  int       `json:"skipped"`
	Checks   []finding `json:"checks"`
}

func (x *examination) report() *doctorReport {
	r := &doctorReport{Status: levelOK, Checks: x.findings}
	for _, f := range x.findings {
		switch f.Level {
		case levelOK:
			r.OK++
		case levelWarning:
			r.Warning++
		case levelCritical:
			r.Critical++
		case levelSkipped:
			r.Skipped++
		}
	}
	switch {
	case r.Critical > 0:
		r.Status = levelCritical
	case r.Warning > 0:
		r.Status = levelWarning
	}
	return r
}

// print writes the summary, which a monitoring system shows, and the lines.
func (r *doctorReport) print(w io.Writer) error {
	p := printer{w: w}
	p.printf("%s - %d critical, %d warning, %d ok, %d skipped\n", strings.ToUpper(string(r.Status)), r.Critical, r.Warning, r.OK, r.Skipped)
	width := 0
	for _, f := range r.Checks {
		width = max(width, len(visible(f.Check)))
	}
	for _, f := range r.Checks {
		line := fmt.Sprintf("%-4s  %-*s  %s", short[f.Level], width, visible(f.Check), visible(f.Detail))
		if f.Remedy != "" {
			line += " -> " + visible(f.Remedy)
		}
		p.printf("%s\n", line)
	}
	return p.err
}

// verdict is the error with the exit code, nil when all is well.
func (r *doctorReport) verdict() error {
	if r.Status == levelOK {
		return nil
	}
	var checks []string
	for _, f := range r.Checks {
		if f.Level == r.Status {
			checks = append(checks, f.Check)
		}
	}
	code := exitWarning
	if r.Status == levelCritical {
		code = exitCritical
	}
	return exitf(code, "%s: %s", r.Status, strings.Join(checks, ", "))
}
