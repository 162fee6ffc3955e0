package main

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

func TestVisible(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                           "",
		"order 7":                    "order 7",
		`a\b'"ü漢`:                    `a\b'"ü漢`,
		"\x1b[2J\r\n\x00\x7f":        `\x1b[2J\r\n\x00\x7f`,
		"\u009b2J":                   `\u009b2J`,
		"a\u202eb\u2028\ufeff\u00a0": `a\u202eb\u2028\ufeff\u00a0`,
		"\xff\xc3":                   `\xff\xc3`,
		"\U000e0041":                 `\U000e0041`,
		"\ufffd":                     "\ufffd",
	} {
		require.Equal(t, want, visible(in), "%q", in)
	}
}

// What is escaped in JSON is the same value.
func TestVisibleJSON(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"plain", "ü漢", "\x1b\x7f\u0085\u009b\u202e\u2028", "tag \U000e0041 emoji \U0001f600", "<&>"} {
		var b bytes.Buffer
		require.NoError(t, newJSONEncoder(&b).Encode(map[string]string{"id": in}))
		for _, r := range b.String() {
			require.True(t, r == '\n' || unicode.IsPrint(r), "%q in %q", r, b.String())
		}
		var got map[string]string
		require.NoError(t, json.Unmarshal(b.Bytes(), &got))
		require.Equal(t, in, got["id"])
	}
}

func FuzzVisible(f *testing.F) {
	f.Add("\x1b[2J\xff\u202e")
	f.Fuzz(func(t *testing.T, s string) {
		for _, r := range visible(s) {
			require.False(t, invisible(r), "%q", r)
		}
		require.Equal(t, visible(s), visible(visible(s)))
	})
}
