package config

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// A Problem is something wrong at a place of a file.
type Problem struct {
	File    string
	Line    int // from 1; 0: of the whole file
	Column  int
	Message string
	Source  string // the line
}

func (p Problem) Error() string { return p.Place() + ": " + p.Message }

// Place is file:line:column, or the file alone.
func (p Problem) Place() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Text is the error with the line and a caret under the place.
func (p Problem) Text() string {
	if p.Line == 0 || p.Source == "" {
		return p.Error()
	}
	margin := fmt.Sprintf("%5d | ", p.Line)
	source := strings.ReplaceAll(p.Source, "\t", " ")
	column := min(max(p.Column-1, 0), utf8.RuneCountInString(source))
	return fmt.Sprintf("%s\n%s%s\n%s^", p.Error(), margin, source, strings.Repeat(" ", len(margin)+column))
}

// Problems are all that was found.
type Problems []Problem

func (ps Problems) Error() string {
	texts := make([]string, len(ps))
	for i, p := range ps {
		texts[i] = p.Error()
	}
	return strings.Join(texts, "\n")
}

// Subject is what is wrong: the file, or what goes before it.
func (ps Problems) Subject() string {
	for _, p := range ps {
		if p.File != ps[0].File {
			return "the configuration"
		}
	}
	return ps[0].File
}

// Text is all of them with their lines.
func (ps Problems) Text() string {
	texts := make([]string, len(ps))
	for i, p := range ps {
		texts[i] = p.Text()
	}
	return strings.Join(texts, "\n")
}
