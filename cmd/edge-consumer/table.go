package main

import (
	"strings"
	"unicode/utf8"
)

// A column of a table.
type column struct {
	name  string
	right bool // numbers are
	most  int  // characters of a cell; what is longer is cut. 0: nothing is
}

// tableSample is how many rows decide how wide the columns are.
const tableSample = 200

// A table prints rows in columns for people. It holds the first rows back to
// see how wide the columns must be, and prints the others as they come: a
// long table takes no more memory than a short one. Cells are made visible.
type table struct {
	p       *printer
	columns []column
	width   []int
	held    [][]string
	printed bool
}

func newTable(p *printer, columns ...column) *table {
	t := &table{p: p, columns: columns, width: make([]int, len(columns))}
	header := make([]string, len(columns))
	for i, c := range columns {
		header[i] = c.name
	}
	t.hold(header)
	return t
}

// row adds a row, a cell for each column.
func (t *table) row(cells ...string) {
	for i, cell := range cells {
		cells[i] = cut(visible(cell), t.columns[i].most)
	}
	if t.printed {
		t.print(cells)
		return
	}
	t.hold(cells)
	if len(t.held) > tableSample {
		t.flush()
	}
}

// flush prints the rows that are held back. It is called after the last row.
func (t *table) flush() {
	t.printed = true
	for _, cells := range t.held {
		t.print(cells)
	}
	t.held = nil
}

func (t *table) hold(cells []string) {
	for i, cell := range cells {
		t.width[i] = max(t.width[i], utf8.RuneCountInString(cell))
	}
	t.held = append(t.held, cells)
}

func (t *table) print(cells []string) {
	var b strings.Builder
	for i, cell := range cells {
		if i > 0 {
			b.WriteString("  ")
		}
		space := strings.Repeat(" ", max(t.width[i]-utf8.RuneCountInString(cell), 0))
		if t.columns[i].right {
			b.WriteString(space + cell)
		} else {
			b.WriteString(cell + space)
		}
	}
	t.p.printf("%s\n", strings.TrimRight(b.String(), " "))
}

// cut shortens s to a number of characters, 0 for any.
func cut(s string, most int) string {
	if most == 0 || utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}
