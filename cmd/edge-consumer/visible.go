package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Ids, keys, types and errors are written by whoever sent the message. On a
// terminal a control character in one of them could move the cursor, forge a
// line or change a setting: none is printed as it is.

// visible writes what cannot be seen as Go's escapes (\n, \x1b, \u202e). What
// can be seen stays as it is, backslashes too, so that ids can be copied.
func visible(s string) string {
	if strings.IndexFunc(s, invisible) < 0 && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for i, width := 0, 0; i < len(s); i += width {
		var r rune
		switch r, width = utf8.DecodeRuneInString(s[i:]); {
		case r == utf8.RuneError && width == 1: // a byte that is no UTF-8
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case invisible(r):
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// invisible is true of control characters, of those that change the direction
// of writing, and of white space but the plain one.
func invisible(r rune) bool { return !strconv.IsPrint(r) }

// A visibleJSON writes JSON on. Package encoding/json escapes control
// characters up to U+001F; this one the others too, which some terminals obey.
// The values stay the same. It takes whole documents.
type visibleJSON struct{ w io.Writer }

func (v visibleJSON) Write(doc []byte) (int, error) {
	var b strings.Builder
	for _, r := range string(doc) {
		switch {
		case r < utf8.RuneSelf && r != 0x7f || !invisible(r):
			b.WriteRune(r)
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	if _, err := io.WriteString(v.w, b.String()); err != nil {
		return 0, err
	}
	return len(doc), nil
}
