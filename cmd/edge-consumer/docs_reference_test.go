package main

import (
	"database/sql"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"edge.example/inbox/cmd/edge-consumer/internal/config"
	"edge.example/inbox/cmd/edge-consumer/internal/sqlhandler"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tableRows are the first cells of the rows of tables, below a heading.
func tableRows(t *testing.T, file, heading string) (names []string, rows map[string]string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs", file))
	require.NoError(t, err)
	_, text2, ok := strings.Cut("\n"+string(text), "\n"+heading+"\n")
	require.True(t, ok, "%s has no heading %q", file, heading)
	level := regexp.MustCompile(`^#+`).FindString(heading)
	if next := regexp.MustCompile(`(?m)^#{1,` + string(rune('0'+len(level))) + `} `).FindStringIndex(text2); next != nil {
		text2 = text2[:next[0]]
	}
	rows = map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|(.*)$").FindAllStringSubmatch(text2, -1) {
		assert.NotContains(t, rows, m[1], "%s names it twice", file)
		names, rows[m[1]] = append(names, m[1]), m[2]
	}
	return names, rows
}

// settingsOf are the names of all settings in a type.
func settingsOf(prefix string, t reflect.Type, stop reflect.Type) (names []string) {
	for f := range t.Fields() {
		key := f.Tag.Get("yaml")
		if key == "" {
			continue
		}
		name, ft := prefix+key, f.Type
		for {
			switch ft.Kind() {
			case reflect.Pointer:
				ft = ft.Elem()
				continue
			case reflect.Slice:
				if ft.Elem().Kind() == reflect.Struct && ft.Elem() != stop {
					name, ft = name+"[]", ft.Elem()
					continue
				}
			case reflect.Map:
				if ft.Elem().Kind() == reflect.Struct {
					name, ft = name+".NAME", ft.Elem()
					continue
				}
			}
			break
		}
		var below []string
		if ft.Kind() == reflect.Struct {
			below = settingsOf(name+".", ft, stop)
		}
		if below == nil {
			below = []string{name}
		}
		names = append(names, below...)
	}
	return names
}

// TestDocs_Settings: docs/configuration.md has every setting, and no other.
func TestDocs_Settings(t *testing.T) {
	statement := reflect.TypeFor[config.Statement]()
	var got []string
	for _, heading := range []string{"## The whole", "## database", "## nats", "## consumers", "## handlers", "## http", "## log"} {
		names, rows := tableRows(t, "configuration.md", heading)
		for name, row := range rows {
			assert.Regexp(t, `\| (at once|start)? ?\|[^|]*\|$`, row, name)
		}
		got = append(got, names...)
	}
	assert.ElementsMatch(t, settingsOf("", reflect.TypeFor[config.Config](), statement), got)

	_, rows := tableRows(t, "configuration.md", "## SQL handlers")
	for _, name := range settingsOf("sql[].", statement, nil) {
		assert.Contains(t, rows, name)
	}
	got, _ = tableRows(t, "configuration.md", "## Tests")
	assert.ElementsMatch(t, settingsOf("", reflect.TypeFor[config.Tests](), nil), got)
}

// TestDocs_SQL: parameters and causes are those of the SQL handlers.
func TestDocs_SQL(t *testing.T) {
	names, _ := tableRows(t, "configuration.md", "### Parameters")
	assert.ElementsMatch(t, strings.Fields(sqlhandler.Parameters), names)
	names, rows := tableRows(t, "configuration.md", "### permanent_if")
	assert.ElementsMatch(t, sqlhandler.Causes, names)
	for name, row := range rows {
		assert.Equal(t, slices.Contains(sqlhandler.DefaultPermanentIf, name), strings.HasPrefix(row, " yes "), name)
	}
}

// TestDocs_Alerts: there is something to do for every alert of Prometheus.
func TestDocs_Alerts(t *testing.T) {
	rules, err := os.ReadFile("../../deploy/prometheus-alerts.yml")
	require.NoError(t, err)
	text, err := os.ReadFile("../../docs/howto/operate.md")
	require.NoError(t, err)
	alerts := regexp.MustCompile(`(?m)- alert: (\w+)`).FindAllStringSubmatch(string(rules), -1)
	assert.NotEmpty(t, alerts)
	for _, m := range alerts {
		assert.Contains(t, string(text), "`"+m[1]+"`")
	}
}

// TestDocs_Views: docs/views.md has every column of every view, with its type.
func TestDocs_Views(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.Equal(t, exitOK, run(t.Context(), []string{"demo", "--messages", "40", "--dir", dir}, nil, io.Discard, io.Discard))
	db, err := sql.Open("sqlite", filepath.Join(dir, "demo.db"))
	require.NoError(t, err)
	defer db.Close()
	strs := func(query string, args ...any) (list []string) {
		rows, err := db.QueryContext(t.Context(), query, args...)
		require.NoError(t, err)
		defer rows.Close()
		for rows.Next() {
			var s string
			require.NoError(t, rows.Scan(&s))
			list = append(list, s)
		}
		require.NoError(t, rows.Err())
		return list
	}
	views := strs(`SELECT name FROM sqlite_schema WHERE type = 'view'`)
	assert.NotEmpty(t, views)
	for _, view := range views {
		names, rows := tableRows(t, "views.md", "## "+view)
		columns := strs(`SELECT name FROM pragma_table_info(?)`, view)
		assert.Equal(t, columns, names, view)
		for _, column := range columns {
			types := strings.Split(strings.TrimSpace(strings.Split(rows[column], "|")[0]), " or ")
			for _, typ := range strs(`SELECT DISTINCT typeof("` + column + `") FROM ` + view) {
				assert.Contains(t, types, typ, "%s.%s", view, column)
			}
		}
	}
}

// TestDocs_Links: what a document links to is there.
func TestDocs_Links(t *testing.T) {
	var files []string
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../docs/howto/*.md"} {
		some, err := filepath.Glob(pattern)
		require.NoError(t, err)
		files = append(files, some...)
	}
	anchors := func(file string) map[string]bool {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		set := map[string]bool{"": true}
		for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(text), -1) {
			set[strings.ReplaceAll(regexp.MustCompile(`[^a-z0-9_ -]`).ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
		}
		return set
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			path, anchor, _ := strings.Cut(m[1], "#")
			target := file
			if path != "" {
				target = filepath.Join(filepath.Dir(file), path)
			}
			if _, err := os.Stat(target); !assert.NoError(t, err, "%s: %s", file, m[1]) || !strings.HasSuffix(target, ".md") {
				continue
			}
			assert.True(t, anchors(target)[anchor], "%s: %s: no such heading", file, m[1])
		}
	}
}
