package inbox

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseJSONPath(t *testing.T) {
	name := func(s string, end int) jsonStep { return jsonStep{name: s, end: end} }
	index := func(n, end int) jsonStep { return jsonStep{isIndex: true, index: n, end: end} }
	last := func(n, end int) jsonStep {
		return jsonStep{isIndex: true, index: n, fromEnd: true, end: end}
	}
	for text, want := range map[string][]jsonStep{
		`$`:               nil,
		`$.order.id`:      {name("order", 7), name("id", 10)},
		`$.items[0].sku`:  {name("items", 7), index(0, 10), name("sku", 14)},
		`$[2][#-13]`:      {index(2, 4), last(13, 10)},
		`$[007]`:          {index(7, 6)},
		`$[2147483647]`:   {index(2147483647, 13)},
		`$."a.b".c`:       {name("a.b", 7), name("c", 9)},
		`$."a[0]"[0]`:     {name("a[0]", 8), index(0, 11)},
		`$.""`:            {name("", 4)},
		`$."\"\\\u0061 "`: {name(`"\a `, 15)},
		`$.naïve.$id.a-b`: {name("naïve", 8), name("$id", 12), name("a-b", 16)},
		`$.a#1.@type`:     {name("a#1", 5), name("@type", 11)},
	} {
		got, err := parseJSONPath(text)
		if assert.NoError(t, err, text) {
			assert.Equal(t, jsonPath{text: text, steps: want}, got, text)
		}
	}
}

func TestParseJSONPathErrors(t *testing.T) {
	for _, row := range []struct{ text, at, want string }{
		{``, "column 1", "starts with '$'"},
		{`order.id`, "column 1", "starts with '$'"},
		{` $.a`, "column 1", "starts with '$'"},
		{"$.\xff", "column 1", "UTF-8"},
		{`$order`, "column 2", "want '.'"},
		{`$ `, "column 2", "want '.'"},
		{`$.a[0]b`, "column 7", "want '.'"},
		{`$."a"b`, "column 6", "want '.'"},

		{`$.`, "column 3", "a name is missing"},
		{`$.a..b`, "column 5", "a name is missing"},
		{`$.[0]`, "column 3", "a name is missing"},
		{`$..a`, "column 3", "a name is missing"},
		{`$.a]`, "column 4", "double quotes"},
		{`$.a b`, "column 4", "double quotes"},
		{`$.é"b`, "column 4", "double quotes"},
		{`$.*`, "column 3", "double quotes"},
		{`$.'a'`, "column 3", "double quotes"},
		{`$.a\u0062`, "column 4", "double quotes"},

		{`$."a`, "column 3", "not closed"},
		{`$."a\"`, "column 3", "not closed"},
		{`$."a\`, "column 3", "not closed"},
		{`$."é\x41"`, "column 6", "invalid character"},
		{"$.\"a\n\"", "column 5", "invalid character"},
		{`$.a."\ud800"`, "column 6", "lone surrogate"},

		{`$[`, "column 2", "']' is missing"},
		{`$[]`, "column 3", "an index is a number"},
		{`$[*]`, "column 3", "an index is a number"},
		{`$['a']`, "column 3", "an index is a number"},
		{`$[-1]`, "column 3", "an index is a number"},
		{`$[+1]`, "column 3", "an index is a number"},
		{`$[ 1]`, "column 3", "an index is a number"},
		{`$[#]`, "column 3", "an index is a number"},
		{`$[#-]`, "column 3", "an index is a number"},
		{`$[#-#-1]`, "column 3", "an index is a number"},
		{`$[#-0]`, "column 3", "the last element is [#-1]"},
		{`$[2147483648]`, "column 3", "too large"},
		{`$[99999999999999999999]`, "column 3", "too large"},
	} {
		_, err := parseJSONPath(row.text)
		if assert.ErrorContains(t, err, row.want, row.text) {
			assert.ErrorContains(t, err, row.at+":", row.text)
			assert.ErrorContains(t, err, "$.items[0].sku", "an example of a right path")
		}
	}
}

func TestJSONPathLookup(t *testing.T) {
	const order = ` {
	  "order" : { "id":"o-1", "no": 17, "total":1.50, "big":12345678901234567890 },
	  "items" : [ {"sku":"first"}, {"sku":"middle"}, {"sku":"last"} ],
	  "a.b":{"c":"quoted"}, "":"empty name", "e":"",
	  "esc\u0061ped\"":"\u20ac\ud83d\ude00\n\"\/",
	  "brackets":"]}[{\"\\", "after":-0
	} `
	for _, row := range []struct{ path, doc, want string }{
		{`$.order.id`, order, "o-1"},
		{`$.order.no`, order, "17"},
		{`$.order.total`, order, "1.50"},
		{`$.order.big`, order, "12345678901234567890"},
		{`$.items[0].sku`, order, "first"},
		{`$.items[2].sku`, order, "last"},
		{`$.items[#-1].sku`, order, "last"},
		{`$.items[#-3].sku`, order, "first"},
		{`$."a.b".c`, order, "quoted"},
		{`$.""`, order, "empty name"},
		{`$.e`, order, ""},
		{`$."escaped\""`, order, "€😀\n\"/"},
		{`$."\u0065"`, order, ""},
		{`$.brackets`, order, `]}[{"\`},
		{`$.after`, order, "-0"},

		{`$`, `"x"`, "x"},
		{`$`, ` 1E+2 `, "1E+2"},
		{`$[0][0]`, `[[1]]`, "1"},
		{`$[1]`, "[[]\t,\r\n2]", "2"},

		// The rest of the document only has to be valid JSON.
		{`$.a`, `{"b":1,"b":2,"a":3}`, "3"},
		{`$.a`, `{"b":"\ud800","a":3}`, "3"},
		{`$.a`, `{"\ud800":1,"a":3}`, "3"},
		{`$.a`, `{"a":3,"n":1e999}`, "3"},
		{`$.a`, `{"d":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `,"a":3}`, "3"},
	} {
		got, err := mustParseJSONPath(t, row.path).lookup([]byte(row.doc))
		if assert.NoError(t, err, "%s in %.60s", row.path, row.doc) {
			assert.Equal(t, row.want, got, "%s in %.60s", row.path, row.doc)
		}
	}
}

func TestJSONPathLookupErrors(t *testing.T) {
	for _, row := range []struct {
		path, doc string
		kind      error
		want      string
	}{
		{`$.a`, `{}`, errPathAbsent, "there is no $.a"},
		{`$.a`, `{"A":1}`, errPathAbsent, "there is no $.a"},
		{`$.a`, `{"a":null}`, errPathAbsent, "it is null"},
		{`$`, `null`, errPathAbsent, "it is null"},
		{`$.a.b.c`, `{"a":{"b":{}}}`, errPathAbsent, "there is no $.a.b.c"},
		{`$.a.b.c`, `{"a":{}}`, errPathAbsent, "there is no $.a.b"},
		{`$.a.b`, `{"a":null}`, errPathAbsent, "there is no $.a.b"},
		{`$.a.b`, `{"a":"b"}`, errPathAbsent, "there is no $.a.b"},
		{`$.a.b`, `{"a":["b"]}`, errPathAbsent, "there is no $.a.b"},
		{`$.b`, `{"a":"b"}`, errPathAbsent, "there is no $.b"},
		{`$.b`, `{"a":{"b":1}}`, errPathAbsent, "there is no $.b"},
		{`$[0]`, `[]`, errPathAbsent, "there is no $[0]"},
		{`$[0]`, `{"0":1}`, errPathAbsent, "there is no $[0]"},
		{`$[2]`, `[1,2]`, errPathAbsent, "there is no $[2]"},
		{`$[#-1]`, `[]`, errPathAbsent, "there is no $[#-1]"},
		{`$[#-3]`, `[1,2]`, errPathAbsent, "there is no $[#-3]"},

		{`$.a`, `{"a":true}`, errPathInvalid, "it is a boolean"},
		{`$.a`, `{"a":false}`, errPathInvalid, "it is a boolean"},
		{`$.a`, `{"a":{}}`, errPathInvalid, "it is an object"},
		{`$`, `[]`, errPathInvalid, "it is an array"},

		{`$.a`, ``, errPathInvalid, "not valid JSON: byte 0"},
		{`$.a`, `{"a":1`, errPathInvalid, "not valid JSON: byte 6"},
		{`$.a`, `{"a":1} x`, errPathInvalid, "not valid JSON: byte 9"},
		{`$.a`, `{"a":1,"b":[1,]}`, errPathInvalid, "not valid JSON: byte 15"},
		{`$.a`, `{"a":1,"b":01}`, errPathInvalid, "not valid JSON: byte 13"},
		{`$.a`, `{"a":1,'b':2}`, errPathInvalid, "not valid JSON: byte 8"},
		{`$.a`, strings.Repeat("[", 1_000_000), errPathInvalid, "not valid JSON"},
		{`$.a`, "{\"a\":\"\xff\"}", errPathInvalid, "not valid UTF-8"},
		{`$.a`, "{\"a\":1,\"b\":\"\xff\"}", errPathInvalid, "not valid UTF-8"},
		{`$.a`, `{"a":"x\ud800"}`, errPathInvalid, "lone surrogate"},
		{`$.a`, `{"a":"\udc00\ud800"}`, errPathInvalid, "lone surrogate"},

		{`$.a`, `{"a":1,"a":1}`, errPathInvalid, "$.a occurs more than once"},
		{`$.a`, `{"a":null,"a":1}`, errPathInvalid, "$.a occurs more than once"},
		{`$.a`, `{"a":1,"b":2,"\u0061":3}`, errPathInvalid, "$.a occurs more than once"},
		{`$.a.b`, `{"a":{"b":1},"a":{}}`, errPathInvalid, "$.a occurs more than once"},
		{`$.a.b`, `{"a":{"b":1,"b":1}}`, errPathInvalid, "$.a.b occurs more than once"},
	} {
		_, err := mustParseJSONPath(t, row.path).lookup([]byte(row.doc))
		assert.ErrorIs(t, err, row.kind, "%s in %.60s", row.path, row.doc)
		assert.ErrorContains(t, err, row.want, "%s in %.60s", row.path, row.doc)
		assert.ErrorContains(t, err, "JSON path "+row.path+":")
	}
}

// FuzzJSONPathLookup compares with a walk over the unmarshalled document.
func FuzzJSONPathLookup(f *testing.F) {
	for _, seed := range [][2]string{
		{`$.order.id`, `{"order":{"id":"o-1"},"x":[1,{"id":2}]}`},
		{`$.items[0].sku`, `{"items":[{"sku":"a"},{"sku":"b"}]}`},
		{`$[#-1]`, ` [1 , "\u20ac\ud83d\ude00" , -1.50e+3 ] `},
		{`$."a.b".c`, `{"a.b":{"c":17},"a":{"b":{"c":18}}}`},
		{`$."\u0061\""`, `{"\u0061\"":"]}{[\"\\"}`},
		{`$`, `"x"`}, {`$`, `null`}, {`$.a`, `{"a":true}`}, {`$.a`, `{"a":{}}`},
		{`$.a`, `{"a":1,"a":2}`}, {`$.a`, `{"a":"\ud800"}`}, {`$.a`, `{"a":1`},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, text, doc string) {
		path, err := parseJSONPath(text)
		if err != nil {
			return
		}
		got, err := path.lookup([]byte(doc))
		if err != nil && !errors.Is(err, errPathAbsent) {
			require.ErrorIs(t, err, errPathInvalid)
		}
		if !json.Valid([]byte(doc)) {
			require.ErrorIs(t, err, errPathInvalid)
			return
		}
		if _, err := canonicalJSON([]byte(doc)); err != nil {
			return // duplicate names or bad Unicode: encoding/json is no reference
		}
		want, wantErr := slowLookup(t, path, doc)
		require.Equal(t, want, got)
		if wantErr == nil {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, wantErr)
		}
	})
}

func slowLookup(t *testing.T, path jsonPath, doc string) (string, error) {
	d := json.NewDecoder(strings.NewReader(doc))
	d.UseNumber()
	var value any
	require.NoError(t, d.Decode(&value))
	for _, step := range path.steps {
		switch container := value.(type) {
		case map[string]any:
			if step.isIndex {
				return "", errPathAbsent
			}
			value = container[step.name]
		case []any:
			index := step.index
			if step.fromEnd {
				index = len(container) - step.index
			}
			if !step.isIndex || index < 0 || index >= len(container) {
				return "", errPathAbsent
			}
			value = container[index]
		default:
			return "", errPathAbsent
		}
	}
	switch value := value.(type) {
	case nil:
		return "", errPathAbsent
	case string:
		return value, nil
	case json.Number:
		return value.String(), nil
	}
	return "", errPathInvalid
}

// Twice the document must not take much more than twice the time. Read
// the ns/op of the sizes; MB/s should be about equal.
func BenchmarkJSONPathLookup(b *testing.B) {
	for _, size := range []struct {
		name  string
		items int
	}{{"10kB", 300}, {"1MB", 30_000}} {
		doc := []byte(`{"items":[` + strings.Repeat(`{"sku":"x","p":[1,2,{"q":3}]},`, size.items) +
			`{}],"id":"last"}`)
		for _, text := range []string{`$.id`, `$.items[#-2].sku`} {
			b.Run(size.name+"/"+text, func(b *testing.B) {
				path, err := parseJSONPath(text)
				require.NoError(b, err)
				b.SetBytes(int64(len(doc)))
				for b.Loop() {
					_, err = path.lookup(doc)
				}
				require.NoError(b, err)
			})
		}
	}
}

func mustParseJSONPath(t *testing.T, text string) jsonPath {
	t.Helper()
	path, err := parseJSONPath(text)
	require.NoError(t, err)
	return path
}
