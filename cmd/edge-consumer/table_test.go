package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTable(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	p := printer{w: &b}
	tab := newTable(&p, column{name: "ID"}, column{name: "N", right: true}, column{name: "ERROR", most: 5})
	tab.row("a", "1,000", "abcdef")
	tab.row("füß\n", "7", "-")
	tab.flush()
	require.Equal(t, "ID         N  ERROR\na      1,000  abcd…\nfüß\\n      7  -\n", b.String())
}

// A long table is printed while it grows.
func TestTable_HoldsFewRows(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	p := printer{w: &b}
	tab := newTable(&p, column{name: "ID"})
	for range tableSample + 1 {
		tab.row("x")
	}
	require.NotZero(t, b.Len())
	require.Empty(t, tab.held)
	tab.row("longer than the others")
	tab.flush()
	require.Equal(t, tableSample+3, strings.Count(b.String(), "\n"))
}

func TestMoment(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 2, 1, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"":                          {},
		"2h":                        now.Add(-2 * time.Hour),
		"1h30m":                     now.Add(-90 * time.Minute),
		"2026-01-31T00:00:00Z":      time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC),
		"2026-01-31T01:00:00+01:00": time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC),
	} {
		got, err := moment("since", text, now)
		require.NoError(t, err)
		require.True(t, want.Equal(got), "%q: %v", text, got)
	}
	for _, text := range []string{"-2h", "2", "yesterday", "2026-01-31"} {
		_, err := moment("since", text, now)
		var coded *exitError
		require.True(t, errors.As(err, &coded) && coded.code == exitUsage, "%q: %v", text, err)
	}
}

func TestAge(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", 1234 * time.Millisecond: "1.2s", 61 * time.Second: "1m1s",
		3*time.Hour + 4*time.Minute + 5*time.Second: "3h4m", 50 * time.Hour: "2d2h",
	} {
		require.Equal(t, want, age(d))
	}
}
