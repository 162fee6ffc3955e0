package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// small is the smallest configuration.
const small = `
database: {path: edge.db}
consumers:
  - name: c
    stream: S
    sql: [INSERT INTO t VALUES (:id)]
`

func read(t *testing.T, text string, env map[string]string, flags map[string]Flag) (*Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "edge.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return Load(path, func(name string) (string, bool) { v, ok := env[name]; return v, ok }, flags)
}

func TestLoad_Everything(t *testing.T) {
	t.Parallel()
	c, err := read(t, `
database: {path: data/edge.db, cache_size: 16MiB, statement_timeout: 5s, min_free: 0, max_size: 10GB}
nats:
  url: [nats://a, nats://b]
  creds: edge.creds
migrations: /abs/migrations
handlers:
  h: {sql: [SELECT 1], permanent_if: []}
consumers:
  - name: orders
    stream: ORDERS
    create_stream: {subjects: [orders.>], storage: memory, max_age: 1d12h, max_bytes: 1GiB, discard: new, duplicates: 2m, replicas: 3}
    subjects: [orders.*, orders.eu.>]
    durable: other
    start: {time: 2026-01-31T12:00:00Z}
    identity: {header: Event-Id, json: $.id, content: true}
    key: {json: $.order.id}
    retry: {initial: 500ms, multiplier: 1.5, max: 10m, jitter: 0, attempts: -1}
    dead_passes: true
    drop_payload: true
    canonical_json: true
    conflicts: ignore
    store_first: true
    ack_wait: 10s
    prefetch: 100
    prefetch_bytes: 1MiB
    permanent_if: [unique]
    sql:
      - INSERT INTO t VALUES (:id)
      - sql: |
          DELETE FROM t
           WHERE id = :id
        when: ":type = 'x'"
        expect_rows: 1
        permanent_if: [rows]
  - {name: more, stream: S, start: new, handler: h}
http: {listen: "off"}
log: {level: debug, format: json}
shutdown_timeout: 1m
`, nil, nil)
	require.NoError(t, err)
	dir := c.file.dir
	assert.Equal(t, filepath.Join(dir, "data/edge.db"), c.Database.Path)
	assert.EqualValues(t, 16<<20, c.Database.CacheSize)
	assert.EqualValues(t, 0, *c.Database.MinFree)
	assert.EqualValues(t, 10e9, c.Database.MaxSize)
	assert.Equal(t, filepath.Join(dir, "edge.creds"), c.NATS.Creds)
	assert.Equal(t, "/abs/migrations", c.Migrations)
	k := c.Consumers[0]
	assert.EqualValues(t, 36*time.Hour, k.CreateStream.MaxAge)
	assert.Equal(t, time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC), k.Start.Time)
	assert.Equal(t, "INSERT INTO t VALUES (:id)", k.SQL[0].SQL)
	assert.Equal(t, "DELETE FROM t\n WHERE id = :id\n", k.SQL[1].SQL)
	assert.EqualValues(t, 1, *k.SQL[1].ExpectRows)
	assert.Equal(t, []string{"rows"}, k.SQL[1].PermanentIf)
	assert.Zero(t, *k.Retry.Jitter)
	assert.True(t, c.Consumers[1].Start.New)
	h, path := c.HandlerOf(1)
	assert.Equal(t, "$.handlers.h", path)
	assert.Equal(t, []string{}, h.PermanentIf)
	assert.True(t, c.HTTP.Off())
}

func TestLoad_Defaults(t *testing.T) {
	t.Parallel()
	c, err := read(t, small, nil, nil)
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1:9464", c.HTTP.Listen)
	assert.EqualValues(t, 64<<20, *c.Database.MinFree)
	assert.Equal(t, 25*time.Second, time.Duration(c.ShutdownTimeout))
	assert.Equal(t, "info", c.Log.Level)
	assert.Equal(t, Start{}, c.Consumers[0].Start)
}

// TestLoad_Wrong: each mistake is named, at its place.
func TestLoad_Wrong(t *testing.T) {
	t.Parallel()
	consumer := func(more string) string {
		return "database: {path: x}\nconsumers:\n  - name: c\n    stream: S\n    sql: [SELECT 1]\n" + more
	}
	for _, tc := range []struct{ name, text, want string }{
		{"empty", ``, `database.path: the path of the SQLite file is missing`},
		{"no consumer", `database: {path: x}`, `there is no consumer`},
		{"tab", "database:\n\tpath: x", `:2:1: `},
		{"a list", `[1, 2]`, `:1:1: a mapping`},
		{"unknown", small + "databse: {path: x}\n", `:7:1: there is no setting "databse"; did you mean "database"?`},
		{"unknown, deep", consumer("    subjcts: [a]\n"), `:6:5: there is no setting "subjcts"; did you mean "subjects"?`},
		{"unknown, far from all", consumer("    frobnicate: 1\n"), `:6:5: there is no setting "frobnicate"`},
		{"text without quotes", "database: {path: x}\nconsumers: [{name: c, stream: S, sql: [INSERT INTO t VALUES (:id)]}]\n", `put it into quotes`},
		{"unknown in a statement", "database: {path: x}\nconsumers:\n  - name: c\n    stream: S\n    sql:\n      - sq: SELECT 1\n", `:6:9: there is no setting "sq"; did you mean "sql"?`},
		{"twice", small + "log: {level: info}\nlog: {level: debug}\n", `:8:1: `},
		{"tag", small + "log: {level: !!binary eA==}\n", `:7:14: a tag (!!binary) has no meaning here`},
		{"two documents", small + "---\na: 1\n", `a second document`},
		{"type", small + "shutdown_timeout: [1]\n", `:7:19: a duration is wanted here`},
		{"duration", small + "shutdown_timeout: 5 minutes\n", `:7:19: "5 minutes" is not a duration`},
		{"negative duration", small + "shutdown_timeout: -5s\n", `"-5s" is not a duration`},
		{"size", "database: {path: x, cache_size: big}\n", `:1:33: "big" is not a size`},
		{"bool", consumer("    dead_passes: maybe\n"), `:6:18: true or false is wanted here`},
		{"number", consumer("    prefetch: many\n"), `:6:15: a number is wanted here`},
		{"level", small + "log: {level: inof}\n", `:7:14: "inof" is none of debug, info, warn, error; did you mean "info"?`},
		{"name", strings.Replace(small, "name: c", "name: a b", 1), `:4:11: "a b": a consumer's name has letters`},
		{"no name", strings.Replace(small, "- name: c\n    stream", "- stream", 1), `:4:5: a consumer needs a name`},
		{"same name", small + "  - {name: c, stream: T, sql: [SELECT 1]}\n", `:7:12: there are two consumers "c"`},
		{"no stream", strings.Replace(small, "    stream: S\n", "", 1), `:4:5: consumer "c" needs a stream`},
		{"stream", strings.Replace(small, "stream: S", "stream: a.b", 1), `:5:13: "a.b": the name of a stream`},
		{"durable", consumer("    durable: a.b\n"), `:6:14: "a.b"`},
		{"subject", consumer("    subjects: [ok, a..b]\n"), `:6:20: "a..b" is no NATS subject`},
		{"subject in the middle", consumer("    subjects: [a.>.b]\n"), `"a.>.b" is no NATS subject`},
		{"stream without subjects", consumer("    create_stream: {max_age: 1d}\n"), `the stream needs subjects`},
		{"storage", consumer("    create_stream: {subjects: [a], storage: disk}\n"), `"disk" is none of file, memory`},
		{"start", consumer("    start: sometime\n"), `:6:12: "sometime": start is all, new`},
		{"start, both", consumer("    start: {sequence: 1, time: 2026-01-31T12:00:00Z}\n"), `start is all, new`},
		{"start, time", consumer("    start: {time: yesterday}\n"), `time "yesterday"`},
		{"key, both", consumer("    key: {json: $.a, header: B}\n"), `not both`},
		{"key path", consumer("    key: {json: a.b}\n"), `:6:17: `},
		{"identity path", consumer("    identity: {json: $.}\n"), `:6:22: `},
		{"schema", consumer("    schema: missing.json\n"), `:6:13: open `},
		{"multiplier", consumer("    retry: {multiplier: 0.5}\n"), `at least 1`},
		{"jitter", consumer("    retry: {jitter: 2}\n"), `0 to 1`},
		{"attempts", consumer("    retry: {attempts: -2}\n"), `-1 for no limit`},
		{"retry max", consumer("    retry: {initial: 1m, max: 1s}\n"), `shorter than initial`},
		{"conflicts", consumer("    conflicts: drop\n"), `"drop" is none of keep, ignore`},
		{"ack wait", consumer("    ack_wait: 1ms\n"), `at least 100ms`},
		{"nothing to do", strings.Replace(small, "    sql: [INSERT INTO t VALUES (:id)]\n", "", 1), `consumer "c" does nothing`},
		{"no such handler", strings.Replace(small, "sql: [INSERT INTO t VALUES (:id)]", "handler: ordes", 1) + "handlers: {orders: {sql: [SELECT 1]}}\n", `:6:14: there is no handler "ordes"; did you mean "orders"?`},
		{"both", consumer("    handler: h\n") + "handlers: {h: {sql: [SELECT 1]}}\n", `not both`},
		{"empty handler", small + "handlers: {h: {}}\n", `handler "h" has no sql`},
		{"cause", consumer("    permanent_if: [uniqe]\n"), `"uniqe" is none of check, not_null, unique, primary_key, foreign_key, datatype, trigger, rows, json; did you mean "unique"?`},
		{"two statements", strings.Replace(small, "[INSERT INTO t VALUES (:id)]", `["SELECT 1; SELECT 2"]`, 1), `:6:11: sql: a second statement follows the semicolon`},
		{"parameter", strings.Replace(small, "[INSERT INTO t VALUES (:id)]", `["SELECT :ident"]`, 1), `there is no parameter :ident`},
		{"expect_rows", "database: {path: x}\nconsumers:\n  - name: c\n    stream: S\n    sql:\n      - {sql: SELECT 1, expect_rows: -1}\n", `:6:38: expect_rows: is -1`},
		{"http", small + "http: {listen: 0.0.0.0:9464}\n", `token`},
		{"not set", small + "log: {level: '${LEVEL}'}\n", `:7:14: the environment variable LEVEL is not set`},
		{"not set, with a message", small + "log: {level: '${LEVEL:?choose one}'}\n", `LEVEL is not set: choose one`},
		{"bad reference", small + "log: {level: '${1+1}'}\n", `write ${VAR}`},
	} {
		_, err := read(t, tc.text, nil, nil)
		var problems Problems
		if assert.ErrorAs(t, err, &problems, tc.name) {
			assert.Contains(t, err.Error(), tc.want, tc.name)
			assert.NotContains(t, problems.Text(), "%!", tc.name)
		}
	}
}

func TestLoad_AllProblemsAtOnce(t *testing.T) {
	t.Parallel()
	_, err := read(t, "consumers:\n  - {stream: S, sql: ['SELECT :a', 'SELECT :b']}\nlog: {level: x}\n", nil, nil)
	var problems Problems
	require.ErrorAs(t, err, &problems)
	assert.Len(t, problems, 5)
}

func TestProblem_Text(t *testing.T) {
	t.Parallel()
	_, err := read(t, small+"log:\n  level: inof # a word\n", nil, nil)
	var problems Problems
	require.ErrorAs(t, err, &problems)
	text := problems.Text()
	assert.Equal(t, "    8 |   level: inof # a word\n                 ^", text[strings.Index(text, "\n")+1:])

	_, err = read(t, small+"nats: {password: [secret]}\n", nil, nil)
	require.ErrorAs(t, err, &problems)
	assert.NotContains(t, problems.Text(), "secret]")
}

func TestLoad_Environment(t *testing.T) {
	t.Parallel()
	env := map[string]string{
		"URL": "nats://hub:4222", "N": "7", "EMPTY": "", "TRICK": "a: b\nc: d", "QUOTED": "123",
		"EDGE_LOG_LEVEL": "warn", "EDGE_DATABASE_MIN_FREE": "1GiB", "EDGE_NATS_TLS_FIRST": "true", "EDGE_NATS_PASSWORD": "12345", "EDGE_SHUTDOWN_TIMEOUT": "1m",
	}
	c, err := read(t, `
database: {path: "${EMPTY:-edge.db}"}
nats: {url: "${URL}", user: '${TRICK}', token: "$${URL}", inbox_prefix: "${QUOTED}"}
consumers:
  - name: c${N}
    stream: S
    prefetch: ${N}
    sql: ["INSERT INTO t VALUES ('${URL}')"]
log: {level: debug}
`, env, nil)
	require.NoError(t, err)
	assert.Equal(t, "edge.db", filepath.Base(c.Database.Path))
	assert.Equal(t, "nats://hub:4222", c.NATS.URL[0])
	assert.Equal(t, "a: b\nc: d", c.NATS.User, "a value stays a value")
	assert.Equal(t, "${URL}", string(c.NATS.Token))
	assert.Equal(t, "123", c.NATS.InboxPrefix)
	assert.Equal(t, "c7", c.Consumers[0].Name)
	assert.Equal(t, 7, c.Consumers[0].Prefetch)
	assert.Equal(t, "INSERT INTO t VALUES ('${URL}')", c.Consumers[0].SQL[0].SQL, "not in SQL")
	assert.Equal(t, "warn", c.Log.Level)
	assert.EqualValues(t, 1<<30, *c.Database.MinFree)
	assert.True(t, c.NATS.TLS.First)
	assert.Equal(t, "12345", string(c.NATS.Password))
	assert.Equal(t, time.Minute, time.Duration(c.ShutdownTimeout))

	// Flags go before the environment, and that before the file.
	c, err = read(t, small+"log: {level: debug}\n", env, map[string]Flag{"log.level": {"log-level", "error"}, "nats.url": {"nats", "nats://a, nats://b"}})
	require.NoError(t, err)
	assert.Equal(t, "error", c.Log.Level)
	assert.Equal(t, []string{"nats://a", "nats://b"}, []string(c.NATS.URL))

}

// TestLoad_Blame: what a variable or a flag says wrong is not the file's fault.
func TestLoad_Blame(t *testing.T) {
	t.Parallel()
	file := small + "log: {level: info}\nhttp: {listen: 'off'}\nnats: {url: nats://a}\nmigrations: m\nshutdown_timeout: 1s\n"
	for setting, value := range map[string]string{
		"database.path": "", "database.min_free": "lots", "database.cache_size": "-1", "log.level": "loud", "log.format": "xml",
		"shutdown_timeout": "soon", "nats.tls.first": "maybe",
	} {
		for _, from := range []string{"the environment variable " + EnvName(setting), "the flag --x"} {
			env, flags := map[string]string{EnvName(setting): value}, map[string]Flag{}
			if from == "the flag --x" {
				env, flags = nil, map[string]Flag{setting: {"x", value}}
			}
			_, err := read(t, file, env, flags)
			var problems Problems
			if assert.ErrorAs(t, err, &problems, setting) {
				assert.Len(t, problems, 1, setting)
				assert.Equal(t, from, problems.Subject(), setting)
				assert.Regexp(t, "^"+from+": "+setting+": ", err.Error())
			}
		}
	}
	// A mistake of a section that they have a part in: they are named.
	_, err := read(t, file, map[string]string{"EDGE_HTTP_LISTEN": "0.0.0.0:1"}, nil)
	assert.ErrorContains(t, err, "; http.listen is set by the environment variable EDGE_HTTP_LISTEN")
	c, err := read(t, file, nil, map[string]Flag{"migrations": {"x", "missing"}, "nats.url": {"nats", "::"}})
	require.NoError(t, err)
	assert.Equal(t, "the flag --x", c.At("$.migrations", os.ErrNotExist).Place(), "found later")
	assert.Contains(t, c.At("$.nats", os.ErrInvalid).Error(), "; nats.url is set by the flag --nats")
	// Whoever goes last is to blame.
	_, err = read(t, file, map[string]string{"EDGE_LOG_LEVEL": "loud"}, map[string]Flag{"log.level": {"log-level", "debug"}})
	assert.NoError(t, err)
}

func TestDatabasePath(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "edge.yaml")
	env := map[string]string{"DIR": "data"}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	of := func(text string) (string, error) {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return DatabasePath(path, lookup)
	}
	for _, text := range []string{
		small,
		small + "nats: {password: '${PASSWORD:?ask Ada}', token: '${TOKEN}', creds: missing}\n",
		small + "nonsense: [1]\nlog: 7\nhttp: {listen: 0.0.0.0:1}\n",
		"database: {path: '${NAME:-edge.db}'}",
	} {
		got, err := of(text)
		require.NoError(t, err, text)
		assert.Equal(t, filepath.Join(filepath.Dir(path), "edge.db"), got)
	}
	got, err := of("database:\n  path: ${DIR}/edge.db\n")
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(filepath.Dir(path), "data/edge.db"), got)
	for text, want := range map[string]string{
		"":                              "the path of the SQLite file is missing",
		"database: {path: [1]}":         ":1:18: a text is wanted here",
		"database: {path: '${A:?why}'}": ":1:18: the environment variable A is not set: why",
		"a: [":                          ":1:4: ",
		"[1]":                           "the path of the SQLite file is missing",
	} {
		_, err := of(text)
		assert.ErrorContains(t, err, want, text)
	}
	env["EDGE_DATABASE_PATH"] = "/abs/x.db"
	got, err = of("")
	require.NoError(t, err)
	assert.Equal(t, "/abs/x.db", got)
}

func TestLoadWithoutSecrets(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "edge.yaml")
	require.NoError(t, os.WriteFile(path, []byte(small+"nats: {password: '${PASSWORD:?ask Ada}', user: a}\nhttp: {listen: 0.0.0.0:1, token: '${TOKEN}'}\n"), 0o600))
	none := func(string) (string, bool) { return "", false }
	c, err := LoadWithoutSecrets(path, none)
	require.NoError(t, err)
	assert.Equal(t, "c", c.Consumers[0].Name)
	_, err = Load(path, none, nil)
	assert.ErrorContains(t, err, "PASSWORD is not set: ask Ada")
}

// TestLoad_Paths: paths are those of the file's folder, once ~ and variables
// are expanded.
func TestLoad_Paths(t *testing.T) {
	t.Parallel()
	env := map[string]string{"HOME": "/home/ada", "CREDS": "/run/creds", "REL": "sub"}
	for _, key := range []string{"creds", "nkey", "tls.ca", "tls.cert", "tls.key"} {
		for in, want := range map[string]string{
			"x.pem": "DIR/x.pem", "/abs/x.pem": "/abs/x.pem", "~/x.pem": "/home/ada/x.pem",
			"$CREDS/x.pem": "/run/creds/x.pem", "$REL/x.pem": "DIR/sub/x.pem", "$NONE": "$NONE", "~x.pem": "DIR/~x.pem",
		} {
			env["EDGE_NATS_"+strings.ToUpper(strings.ReplaceAll(key, ".", "_"))] = in
			c, err := read(t, small, env, nil)
			require.NoError(t, err)
			got := c.settings()["nats."+key].value.String()
			assert.Equal(t, strings.Replace(want, "DIR", c.file.dir, 1), got, "%s: %s", key, in)
		}
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	const placed = "{when: \":subject = 'a'\", sql: INSERT INTO t VALUES (:id)}"
	config := func(more, statements string) string {
		return "database: {path: x}\nconsumers:\n  - name: c\n    stream: S\n" + more + "    sql: [" + statements + "]\n"
	}
	for _, tc := range []struct {
		text string
		want int
	}{
		{config("    key: {json: $.a}\n", placed+", {sql: UPDATE t SET a = 1, expect_rows: 1}"), 1},
		{config("    key: {header: A}\n", placed+", {sql: delete from T, expect_rows: 2}"), 1},
		{config("    key: {header: A}\n", "{sql: UPDATE OR IGNORE \"t\" SET a = 1, expect_rows: 1}, {sql: replace into \"t\" VALUES (1), when: ':id'}"), 1},
		{config("", placed+", {sql: UPDATE t SET a = 1, expect_rows: 1}"), 0},
		{config("    key: {json: $.a}\n", placed+", {sql: UPDATE t SET a = 1}"), 0},
		{config("    key: {json: $.a}\n", placed+", {sql: UPDATE t SET a = 1, expect_rows: 0}"), 0},
		{config("    key: {json: $.a}\n", placed+", {sql: UPDATE u SET a = 1, expect_rows: 1}"), 0},
		{config("    key: {json: $.a}\n", "INSERT INTO t VALUES (1), {sql: UPDATE t SET a = 1, expect_rows: 1}"), 0}, // the row is its own
		{config("    key: {json: $.a}\n    dead_passes: true\n    permanent_if: [rows]\n", placed+", {sql: UPDATE t SET a = 1, expect_rows: 1}"), 0},
	} {
		c, err := read(t, tc.text, nil, nil)
		require.NoError(t, err, tc.text)
		assert.Len(t, c.Warnings(), tc.want, tc.text)
	}
}

// TestSettings_Fixed: every setting is live, or its change is announced.
func TestSettings_Fixed(t *testing.T) {
	t.Parallel()
	names := (&Config{}).settings()
	assert.Contains(t, names, "log.format")
	for name, s := range names {
		was, next := &Config{}, &Config{}
		v := next.settings()[name].value
		if v.Kind() == reflect.Pointer {
			v.Set(reflect.New(v.Type().Elem()))
			v = v.Elem()
		}
		change(t, name, v)
		want := []string{name}
		if s.live {
			want = nil
		}
		assert.Equal(t, want, was.Fixed(next), name)
	}
}

// change gives a value another one than it has.
func change(t *testing.T, name string, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Float64:
		v.SetFloat(v.Float() + 1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), v.Len()+1, v.Len()+1))
	default:
		t.Fatalf("%s is a %v: nothing is known of such settings", name, v.Kind())
	}
}

func TestLoad_NoFile(t *testing.T) {
	t.Parallel()
	none := func(string) (string, bool) { return "", false }
	_, err := Load(filepath.Join(t.TempDir(), "missing.yaml"), none, nil)
	assert.ErrorIs(t, err, os.ErrNotExist)
	_, err = Load(t.TempDir(), none, nil)
	assert.ErrorContains(t, err, "is a directory")
}

func FuzzLoad(f *testing.F) {
	f.Add(small)
	f.Add("a: &a [*a]\n")
	f.Add("consumers: [{sql: [{sql: 1}]}]")
	f.Add("- ${A}")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parse(&file{name: "f", dir: "/", source: []byte(text)}, func(string) (string, bool) { return "x", true }, nil)
		if (c == nil) == (err == nil) {
			t.Fatal(c, err)
		}
	})
}

func TestPayloadSchema(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.json")
	write := func(text string) (*PayloadSchema, error) {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return (&Consumer{Schema: path}).PayloadSchema()
	}
	s, err := write(`{"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}, "kind": {"enum": ["a"]}}}`)
	require.NoError(t, err)
	assert.NoError(t, s.Check([]byte(`{"id": "1", "kind": "a"}`)))
	for payload, want := range map[string]string{
		`{`:                         "not JSON",
		``:                          "not JSON",
		`[]`:                        "at /: is of type array, wanted is object",
		`{}`:                        "at /: missing id",
		`{"id": 17}`:                "at /id: is of type number, wanted is string",
		`{"id": "", "kind": "zzz"}`: "at /kind: fails enum",
	} {
		err := s.Check([]byte(payload))
		assert.ErrorContains(t, err, want, payload)
		assert.NotContains(t, err.Error(), "zzz", "no values")
	}
	_, err = write(`{`)
	assert.ErrorContains(t, err, "is not JSON")
	_, err = write(`{"type": "objekt"}`)
	assert.ErrorContains(t, err, "is no JSON Schema")
	_, err = write(`{"$ref": "file:///etc/passwd"}`)
	assert.ErrorContains(t, err, "refers to itself only")
	_, err = write(`{"$ref": "https://example.org/x.json"}`)
	assert.ErrorContains(t, err, "refers to itself only")
}

func TestNearest(t *testing.T) {
	t.Parallel()
	names := []string{"subjects", "stream", "sql", "schema"}
	assert.Equal(t, "subjects", nearest("subjetcs", names))
	assert.Equal(t, "sql", nearest("sqll", names))
	assert.Equal(t, "", nearest("zebra", names))
}
