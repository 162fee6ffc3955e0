package inbox

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// goTool runs the go command in this directory.
func goTool(t *testing.T, env []string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "go %s: %s", strings.Join(args, " "), stderr.String())
	return strings.TrimSpace(string(out))
}

// requires is what a go.mod file requires, by module.
func requires(t *testing.T, file string) map[string]string {
	t.Helper()
	var mod struct {
		Require []struct{ Path, Version string }
	}
	require.NoError(t, json.Unmarshal([]byte(goTool(t, nil, "mod", "edit", "-json", file)), &mod))
	versions := map[string]string{}
	for _, r := range mod.Require {
		versions[r.Path] = r.Version
	}
	return versions
}

// The driver is C translated to Go against one version of the C library; with
// another it breaks at run time.
func TestModule_LibcIsTheDrivers(t *testing.T) {
	t.Parallel()
	ours := requires(t, "go.mod")
	theirs := requires(t, goTool(t, nil, "list", "-m", "-f", "{{.GoMod}}", "modernc.org/sqlite"))
	require.NotEmpty(t, theirs["modernc.org/libc"])
	assert.Equal(t, theirs["modernc.org/libc"], ours["modernc.org/libc"], "in go.mod")
	assert.Equal(t, theirs["modernc.org/libc"], goTool(t, nil, "list", "-m", "-f", "{{if .Replace}}replaced{{else}}{{.Version}}{{end}}", "modernc.org/libc"), "in the build")
}

func TestModule_Imports(t *testing.T) {
	t.Parallel()
	allowed := []string{
		"modernc.org/sqlite", "modernc.org/sqlite/lib",
		"github.com/nats-io/nats.go", "github.com/nats-io/nats.go/jetstream",
		"github.com/oklog/ulid/v2",
	}
	for _, goos := range []string{"linux", "windows", "darwin"} {
		imports := strings.Fields(goTool(t, []string{"GOOS=" + goos, "GOARCH=amd64"}, "list", "-f", `{{join .Imports "\n"}}`, "."))
		require.Contains(t, imports, "modernc.org/sqlite")
		for _, path := range imports {
			first, _, _ := strings.Cut(path, "/")
			assert.True(t, !strings.Contains(first, ".") || slices.Contains(allowed, path), "on %s the root package imports %s", goos, path)
			assert.NotContains(t, []string{"C", "plugin"}, path, "on %s", goos)
		}
	}
	deps := strings.Fields(goTool(t, nil, "list", "-deps", "."))
	require.Contains(t, deps, "modernc.org/libc")
	for _, path := range deps {
		for _, heavy := range []string{"github.com/nats-io/nats-server", "github.com/stretchr/testify", "pgregory.net", "go.uber.org", "edge.example/inbox/"} {
			assert.False(t, strings.HasPrefix(path, heavy), "the root package depends on %s", path)
		}
	}
}

// The driver's handle is a private field of its: should it move, nothing
// would stop a statement that runs away.
func TestModule_Interrupt(t *testing.T) {
	t.Parallel()
	l := newLab(t, func(o *Options) { o.StatementTimeout = -1 })
	g := l.ib.w.guarded.Load()
	require.NotZero(t, g.handle, "the driver's connection has no field db any more: see handleOf")
	for name, stmt := range map[string]string{
		"read":  `WITH RECURSIVE r (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r LIMIT 20000000) SELECT count(*) FROM r`,
		"write": `INSERT INTO effects (seq, id) WITH RECURSIVE r (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r LIMIT 20000000) SELECT 0, x FROM r WHERE x < 0`,
	} {
		turns, done := make(chan uint64, 9), make(chan error, 1)
		go func() {
			done <- l.ib.Update(ctxBG, func(ctx context.Context, tx *Tx) error {
				turn, _ := g.now()
				turns <- turn
				if name == "read" {
					var n int
					return tx.QueryRowContext(ctx, stmt).Scan(&n)
				}
				_, err := tx.ExecContext(ctx, stmt)
				return err
			})
		}()
		turn := <-turns
		g.interrupt(turn - 1)
		g.interrupt(turn + 1)
		assert.False(t, g.timedOut, "only its own turn is interrupted")
		l.eventually(func() bool {
			g.interrupt(turn) // before the statement started it is lost
			return len(done) == 1
		}, "interrupted: %s", name)
		err := <-done
		assert.ErrorIs(t, err, errTimeLimit, name)
		assert.Zero(t, l.effects(""))
	}
	l.update(`SELECT 1`) // it goes on

	for _, other := range []driver.Conn{nil, noConn{}, &noConn{db: "not a handle"}} {
		assert.Zero(t, handleOf(other), "a driver that is built in another way")
	}
}

type noConn struct{ db string }

func (noConn) Prepare(string) (driver.Stmt, error) { return nil, errors.New("no") }
func (noConn) Close() error                        { return nil }
func (noConn) Begin() (driver.Tx, error)           { return nil, errors.New("no") }
