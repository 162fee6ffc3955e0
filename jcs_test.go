package inbox

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The example of RFC 8785 runs through sections 3.2.2 (input), 3.2.3
// (sorted) and 3.2.4 (bytes).
func TestCanonicalJSONExampleOfRFC8785(t *testing.T) {
	const input = `{
	  "numbers": [333333333.33333329, 1E30, 4.50,
	              2e-3, 0.000000000000000000000000001],
	  "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
	  "literals": [null, true, false]
	}`
	got, err := canonicalJSON([]byte(input))
	require.NoError(t, err)

	assert.Equal(t, `{"literals":[null,true,false],`+
		`"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],`+
		`"string":"€$\u000f\nA'B\"\\\\\"/"}`, string(got))

	want, err := hex.DecodeString(strings.Join(strings.Fields(`
		7b 22 6c 69 74 65 72 61 6c 73 22 3a 5b 6e 75 6c 6c 2c 74 72
		75 65 2c 66 61 6c 73 65 5d 2c 22 6e 75 6d 62 65 72 73 22 3a
		5b 33 33 33 33 33 33 33 33 33 2e 33 33 33 33 33 33 33 2c 31
		65 2b 33 30 2c 34 2e 35 2c 30 2e 30 30 32 2c 31 65 2d 32 37
		5d 2c 22 73 74 72 69 6e 67 22 3a 22 e2 82 ac 24 5c 75 30 30
		30 66 5c 6e 41 27 42 5c 22 5c 5c 5c 5c 5c 22 2f 22 7d`), ""))
	require.NoError(t, err)
	assert.Equal(t, want, got)
}

// The property order example of RFC 8785 section 3.2.3.
func TestCanonicalJSONSortsByUTF16(t *testing.T) {
	got, err := canonicalJSON([]byte(`{
	  "\u20ac": "Euro Sign",
	  "\r": "Carriage Return",
	  "\ufb33": "Hebrew Letter Dalet With Dagesh",
	  "1": "One",
	  "\ud83d\ude00": "Emoji: Grinning Face",
	  "\u0080": "Control",
	  "\u00f6": "Latin Small Letter O With Diaeresis"
	}`))
	require.NoError(t, err)
	assert.Equal(t, `{"\r":"Carriage Return",`+
		`"1":"One",`+
		"\"\u0080\":\"Control\","+
		`"ö":"Latin Small Letter O With Diaeresis",`+
		`"€":"Euro Sign",`+
		`"😀":"Emoji: Grinning Face",`+
		"\"\ufb33\":\"Hebrew Letter Dalet With Dagesh\"}", string(got))
}

// The table of RFC 8785 appendix B.
func TestCanonicalJSONNumbersOfRFC8785(t *testing.T) {
	for _, row := range []struct {
		bits uint64 // IEEE 754
		want string // empty for "Error"
	}{
		{0x0000000000000000, "0"},
		{0x8000000000000000, "0"},
		{0x0000000000000001, "5e-324"},
		{0x8000000000000001, "-5e-324"},
		{0x7fefffffffffffff, "1.7976931348623157e+308"},
		{0xffefffffffffffff, "-1.7976931348623157e+308"},
		{0x4340000000000000, "9007199254740992"},
		{0xc340000000000000, "-9007199254740992"},
		{0x4430000000000000, "295147905179352830000"},
		{0x7fffffffffffffff, ""}, // NaN
		{0x7ff0000000000000, ""}, // Infinity
		{0x44b52d02c7e14af5, "9.999999999999997e+22"},
		{0x44b52d02c7e14af6, "1e+23"},
		{0x44b52d02c7e14af7, "1.0000000000000001e+23"},
		{0x444b1ae4d6e2ef4e, "999999999999999700000"},
		{0x444b1ae4d6e2ef4f, "999999999999999900000"},
		{0x444b1ae4d6e2ef50, "1e+21"},
		{0x3eb0c6f7a0b5ed8c, "9.999999999999997e-7"},
		{0x3eb0c6f7a0b5ed8d, "0.000001"},
		{0x41b3de4355555553, "333333333.3333332"},
		{0x41b3de4355555554, "333333333.33333325"},
		{0x41b3de4355555555, "333333333.3333333"},
		{0x41b3de4355555556, "333333333.3333334"},
		{0x41b3de4355555557, "333333333.33333343"},
		{0xbecbf647612f3696, "-0.0000033333333333333333"},
		{0x43143ff3c1cb0959, "1424953923781206.2"},
	} {
		// Two other notations of the same double.
		for _, format := range []byte{'e', 'f'} {
			f := math.Float64frombits(row.bits)
			src := strconv.FormatFloat(f, format, 1100, 64)
			got, err := canonicalJSON([]byte(src))
			if row.want == "" {
				assert.Error(t, err, "%x", row.bits)
			} else if assert.NoError(t, err, "%x", row.bits) {
				assert.Equal(t, row.want, string(got), "%x", row.bits)
			}
		}
	}
}

func TestCanonicalJSON(t *testing.T) {
	for src, want := range map[string]string{
		`null`:                      `null`,
		" [ ] ":                     `[]`,
		"\t{\r\n}":                  `{}`,
		`[{"b":1,"a":[{}]}, "x"]`:   `[{"a":[{}],"b":1},"x"]`,
		`{"b":1,"":2,"a":3,"aa":4}`: `{"":2,"a":3,"aa":4,"b":1}`,

		// Strings: section 3.2.2.2.
		`"\b\t\n\f\r\"\\\/"`:            `"\b\t\n\f\r\"\\/"`,
		`"\u0008\u0009\u000A\u000c"`:    `"\b\t\n\f"`,
		`"\u0000\u000B\u001F"`:          `"\u0000\u000b\u001f"`,
		`"\u007f\u2028\u2029<>&\ufffd"`: "\"\u007f\u2028\u2029<>&\ufffd\"",
		`"\uD834\udd1e"`:                `"𝄞"`,
		`"\\ud800"`:                     `"\\ud800"`,
		"\"\uffff\"":                    "\"\uffff\"",

		// Numbers: rounding, and what rounds to zero.
		`-0`:                              `0`,
		`[-0.0, -0e5, 0E+00]`:             `[0,0,0]`,
		`9007199254740993`:                `9007199254740992`,
		`1e-400`:                          `0`,
		`-1e-400`:                         `0`,
		`1e-10`:                           `1e-10`,
		`100E-9`:                          `1e-7`,
		`123456789012345680000`:           `123456789012345680000`,
		`1` + strings.Repeat("0", 21):     `1e+21`,
		`0.` + strings.Repeat("0", 4000):  `0`,
		`0e` + strings.Repeat("9", 4000):  `0`,
		`1e-` + strings.Repeat("9", 4000): `0`,
		`0.` + strings.Repeat("0", 3999) + `1e4000`: `1`,
	} {
		got, err := canonicalJSON([]byte(src))
		if assert.NoError(t, err, src) {
			assert.Equal(t, want, string(got), src)
		}
	}
}

func TestCanonicalJSONErrors(t *testing.T) {
	const (
		unexpectedEnd = "unexpected end of JSON input"
		duplicate     = "duplicate property name"
		badUTF8       = "invalid UTF-8"
		lone          = "lone surrogate"
		tooLarge      = "beyond the range of a double"
	)
	for _, row := range []struct{ src, at, want string }{
		{``, "byte 0:", unexpectedEnd},
		{`  `, "byte 2:", unexpectedEnd},
		{`{"a":1`, "byte 6:", unexpectedEnd},
		{`"abc`, "byte 4:", unexpectedEnd},
		{`[1,]`, "byte 4:", "invalid character"},
		{`{a:1}`, "byte 2:", "invalid character"},
		{`01`, "byte 2:", "after top-level value"},
		{`1 2`, "byte 3:", "after top-level value"},
		{`{} x`, "byte 4:", "after top-level value"},
		{`+1`, "byte 1:", "invalid character"},
		{`NaN`, "byte 1:", "invalid character"},
		{`-Infinity`, "byte 2:", "invalid character"},
		{"\"\n\"", "byte 2:", "invalid character"},
		{`"\x41"`, "byte 3:", "invalid character"},
		{`"\u12G4"`, "byte 6:", "invalid character"},
		{"\ufeff{}", "byte 1:", "invalid character"},
		{"[1]\x00", "byte 4:", "invalid character"},

		{`{"a":1,"a":1}`, "byte 8:", duplicate},
		{`{"a":1,"b":2,"\u0061":3}`, "byte 14:", duplicate},
		{`[{"x":{"":1, "":2}}]`, "byte 14:", duplicate},

		{"\"\xff\"", "byte 2:", badUTF8},
		{"[\"ab\xc3\"]", "byte 5:", badUTF8},
		{"\"\xc0\x80\"", "byte 2:", badUTF8},         // overlong
		{"\"\xed\xa0\x80\"", "byte 2:", badUTF8},     // U+D800 in UTF-8
		{"\"\xf4\x90\x80\x80\"", "byte 2:", badUTF8}, // U+110000
		{"{\"\x80\":1}", "byte 3:", badUTF8},

		{`"\ud800"`, "byte 2:", lone},
		{`"a\udc00b"`, "byte 3:", lone},
		{`"\ude00\ud83d"`, "byte 2:", lone},
		{`"\ud83d\ud83d\ude00"`, "byte 2:", lone},
		{`"\ud83dx\ude00"`, "byte 2:", lone},
		{`"\ud83d\n\ude00"`, "byte 2:", lone},
		{`{"\udead":1}`, "byte 3:", lone},

		{`[1e309]`, "byte 2:", tooLarge},
		{`-1e999999999999`, "byte 1:", tooLarge},
		{`1.797693134862315808e308`, "byte 1:", tooLarge},
		{`[0.` + strings.Repeat("0", 9990) + `1e9991]`, "byte 2:", "longer than"},
	} {
		got, err := canonicalJSON([]byte(row.src))
		assert.Nil(t, got, row.src)
		if assert.ErrorContains(t, err, row.want, "%.40q", row.src) {
			assert.ErrorContains(t, err, row.at, "%.40q", row.src)
		}
	}
}

func TestCanonicalJSONDepth(t *testing.T) {
	nested := func(open, end string, n int) []byte {
		return []byte(strings.Repeat(open, n) + "1" + strings.Repeat(end, n))
	}
	for _, pair := range [][2]string{{"[", "]"}, {`{"a":`, "}"}} {
		got, err := canonicalJSON(nested(pair[0], pair[1], maxJCSDepth))
		assert.NoError(t, err)
		assert.Equal(t, nested(pair[0], pair[1], maxJCSDepth), got)

		_, err = canonicalJSON(nested(pair[0], pair[1], maxJCSDepth+1))
		assert.ErrorContains(t, err, "nested deeper than 1000 levels")
	}
	_, err := canonicalJSON(nested("[", "]", 1_000_000))
	assert.ErrorContains(t, err, "exceeded max depth") // from encoding/json
}

// FuzzCanonicalJSON holds canonicalJSON against encoding/json: the
// canonical form has the same value, and it depends on nothing else.
func FuzzCanonicalJSON(f *testing.F) {
	for _, seed := range []string{
		`{"numbers":[333333333.33333329,1E30,4.50,2e-3],"s":"\u20ac\u000f\n'\"\/"}`,
		`{"\u20ac":1,"\r":[null,true,false],"\ufb33":{},"\ud83d\ude00":[],"1":""}`,
		`[-0, 1e-7, 0.000001, 1e21, 1e20, 5e-324, 1.7976931348623157e308, 1e-400]`,
		`{"a":1,"\u0061":2}`, `"\ud800"`, "\"\xff\"", `1e999`, `[[[[1]]]]`, ` [1 , 2] x`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		got, err := canonicalJSON(src)
		var want any
		invalid := json.Unmarshal(src, &want)
		if invalid != nil {
			require.Error(t, err)
			return
		}
		// The value as Go writes it: other order, escapes and numbers.
		// It is I-JSON, even if src is not.
		rewritten, marshalErr := json.MarshalIndent(want, " ", "\t")
		require.NoError(t, marshalErr)
		fromValue, valueErr := canonicalJSON(rewritten)
		if err != nil {
			if valueErr != nil {
				require.ErrorContains(t, valueErr, "nested deeper")
			}
			return
		}
		require.NoError(t, valueErr)
		require.Equal(t, string(got), string(fromValue), "same value, same bytes")

		var value any
		require.NoError(t, json.Unmarshal(got, &value))
		require.Equal(t, want, value, "same value as the source")

		again, err := canonicalJSON(got)
		require.NoError(t, err)
		require.Equal(t, string(got), string(again), "idempotent")

		var compact bytes.Buffer
		require.NoError(t, json.Compact(&compact, got))
		require.Equal(t, compact.String(), string(got), "no white space")
	})
}
