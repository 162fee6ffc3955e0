package sqlhandler

import (
	"fmt"
	"strings"
)

// A token is what scan finds in a statement.
type token struct {
	kind tokenKind
	text string
	at   int // offset in bytes
}

type tokenKind int

const (
	other     tokenKind = iota // anything that is not below
	word                       // a keyword or a name, not quoted
	parameter                  // :name, or another way to write one
	semicolon
)

// scan splits SQL into tokens, white space and comments left out, the way
// SQLite does (https://sqlite.org/lang.html, tokenize.c): what looks like a
// parameter within a string, a quoted name or a comment is none.
func scan(sql string) ([]token, error) {
	var tokens []token
	for i := 0; i < len(sql); {
		start := i
		kind := other
		switch c := sql[i]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f':
			i++
			continue
		case strings.HasPrefix(sql[i:], "--"):
			if n := strings.IndexByte(sql[i:], '\n'); n >= 0 {
				i += n + 1
			} else {
				i = len(sql)
			}
			continue
		case strings.HasPrefix(sql[i:], "/*"):
			if n := strings.Index(sql[i+2:], "*/"); n >= 0 {
				i += n + 4
			} else {
				i = len(sql) // SQLite takes it for a comment that ends with the text
			}
			continue
		case c == '\'' || c == '"' || c == '`' || c == '[':
			end := map[byte]byte{'[': ']'}[c]
			if end == 0 {
				end = c
			}
			n := quoted(sql[i:], end, end != ']')
			if n < 0 {
				return nil, fmt.Errorf("the %c at byte %d is never closed", c, i)
			}
			i += n
		case c == ';':
			kind = semicolon
			i++
		case c == '?' || c == ':' || c == '@' || c == '$' || c == '#':
			i++
			for i < len(sql) && isWord(sql[i]) {
				i++
			}
			if i > start+1 || c == '?' {
				kind = parameter
			}
		case isWord(c):
			kind = word
			for i < len(sql) && isWord(sql[i]) {
				i++
			}
			if c >= '0' && c <= '9' {
				kind = other
			}
		default:
			i++
		}
		tokens = append(tokens, token{kind, sql[start:i], start})
	}
	return tokens, nil
}

// quoted is the length of the quoted text that s begins with, -1 when it does
// not end. Within it, end written twice stands for itself.
func quoted(s string, end byte, doubles bool) int {
	for i := 1; i < len(s); i++ {
		if s[i] != end {
			continue
		}
		if doubles && i+1 < len(s) && s[i+1] == end {
			i++
			continue
		}
		return i + 1
	}
	return -1
}

func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c >= 0x80
}
