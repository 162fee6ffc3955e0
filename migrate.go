package inbox

// The schema: what is in the file, and bringing it up to date in one
// transaction.

import (
	"database/sql/driver"
	"embed"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed schema/*.sql
var schemaFS embed.FS

// migrations in order; number n has index n-1.
var migrations = func() (texts []string) {
	names, err := fs.Glob(schemaFS, "schema/*.sql")
	if err != nil {
		panic(err)
	}
	slices.Sort(names)
	for i, name := range names {
		if !strings.HasPrefix(filepath.Base(name), fmt.Sprintf("%04d_", i+1)) {
			panic("schema: " + name + " is out of order")
		}
		text, err := schemaFS.ReadFile(name)
		if err != nil {
			panic(err)
		}
		texts = append(texts, string(text))
	}
	return texts
}()

// SchemaVersion is the version of the tables that this package writes.
var SchemaVersion = len(migrations)

// schemaVersion is the version of our tables in the file, 0 when there are
// none. It refuses a file that is not for this program, which knows the
// versions up to known; a guest wants exactly that one.
func (c *writeConn) schemaVersion(abs string, known int, guest bool) (version int64, err error) {
	var v [2]driver.Value
	made, foreign := false, ""
	err = c.each(query{text: `
		SELECT type, name FROM main.sqlite_schema
		 WHERE lower(name) IN ('inbox', 'outbox') OR name LIKE 'inbox\_%' ESCAPE '\' OR name LIKE 'outbox\_%' ESCAPE '\'`},
		v[:], func() error {
			if v[0] == "table" && v[1] == "inbox_schema" {
				made = true
			} else {
				foreign = text(v[1])
			}
			return nil
		})
	switch {
	case err != nil:
		return 0, err
	case !made && foreign != "":
		return 0, fmt.Errorf("%w: %s: %s", ErrForeignSchema, abs, foreign)
	case !made && guest:
		return 0, fmt.Errorf("inbox: %s has no inbox in it: its owner makes one by opening it", abs)
	case !made:
		return 0, nil
	}
	found, err := c.queryRow(query{text: `SELECT version FROM main.inbox_schema`}, v[:1])
	version, isInt := v[0].(int64)
	switch {
	case code(err) == codeError: // no such column
		return 0, fmt.Errorf("%w: %s: inbox_schema: %v", ErrForeignSchema, abs, err)
	case err != nil:
		return 0, err
	case !found || !isInt || version < 1:
		return 0, fmt.Errorf("%w: %s: inbox_schema holds no version", ErrForeignSchema, abs)
	case version > int64(known):
		return 0, fmt.Errorf("%w: %s has schema version %d, this program knows %d", ErrNewerSchema, abs, version, known)
	case version < int64(known) && guest:
		return 0, fmt.Errorf("inbox: %s has schema version %d, this program %d: let the owner open it once with this version", abs, version, known)
	}
	return version, nil
}

// codeError is SQLite's result code for a statement that makes no sense.
const codeError = 1

// migrate brings the file to SchemaVersion. For a guest, opening the
// connection has shown that it is there already.
func (c *writeConn) migrate(abs string, guest bool) error {
	if guest {
		return nil
	}
	return c.migrateTo(abs, migrations)
}

// migrateTo runs those of the steps that the file has not seen, in one
// transaction.
func (c *writeConn) migrateTo(abs string, steps []string) error {
	err := c.exclusively(func() error {
		version, err := c.schemaVersion(abs, len(steps), false)
		if err != nil || version == int64(len(steps)) {
			return err
		}
		if version == 0 {
			if _, err := c.exec(query{text: `CREATE TABLE inbox_schema (version INTEGER NOT NULL)`}); err != nil {
				return err
			}
			if _, err := c.exec(query{text: `INSERT INTO inbox_schema VALUES (0)`}); err != nil {
				return err
			}
		}
		for _, text := range steps[version:] {
			if _, err := c.exec(query{text: text}); err != nil {
				return err
			}
		}
		_, err = c.exec(query{text: `UPDATE inbox_schema SET version = ?1`}, int64(len(steps)))
		return err
	})
	if code(err) != 0 {
		return openError(abs, err)
	}
	return err
}
