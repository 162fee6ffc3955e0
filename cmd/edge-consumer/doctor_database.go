package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"edge.example/inbox"
	"edge.example/inbox/cmd/edge-consumer/internal/config"
	"edge.example/inbox/cmd/edge-consumer/internal/gateway"
)

// database examines the file and the disk that it is on.
func (x *examination) database(ctx context.Context) {
	path := x.cfg.Database.Path
	x.folder(filepath.Dir(path))
	there := x.file(path)
	x.space(path)
	const schema, sound = "database schema", "database content"
	if !there {
		x.add(levelSkipped, schema, "there is no database yet", "")
		return
	}
	ib, err := inbox.Open(ctx, path, &inbox.Options{Guest: true, Logger: discard()})
	if err != nil {
		remedy := "see that it is the right file, and that this user may use it"
		switch {
		case errors.Is(err, inbox.ErrNewerSchema):
			remedy = "use the edge-consumer that wrote it, or a later one"
		case errors.Is(err, inbox.ErrCorrupt):
			remedy = "stop the daemon, keep a copy, and restore a backup: what the backup lacks is taken from the stream again"
		}
		x.add(levelCritical, schema, oneLine(err), remedy)
		x.add(levelSkipped, sound, "the database cannot be opened", "")
		return
	}
	defer ib.Close()
	x.add(levelOK, schema, fmt.Sprintf("version %d", inbox.SchemaVersion), "")
	if x.quick {
		x.add(levelSkipped, sound, "--quick", "")
		return
	}
	if faults, err := quickCheck(ctx, ib); err != nil {
		x.add(levelWarning, sound, "could not be read: "+oneLine(err), "try again, or leave it out with --quick")
	} else if len(faults) > 0 {
		x.add(levelCritical, sound, "SQLite finds it damaged: "+strings.Join(faults, "; "),
			"stop the daemon, keep a copy, and restore a backup: what the backup lacks is taken from the stream again")
	} else {
		x.add(levelOK, sound, "SQLite's quick_check finds nothing", "")
	}
}

// quickCheck reads the whole file, in one snapshot beside the writer. It
// returns the first faults.
func quickCheck(ctx context.Context, ib *inbox.Inbox) (faults []string, err error) {
	err = ib.View(ctx, func(ctx context.Context, rx *inbox.Rx) error {
		rows, err := rx.QueryContext(ctx, `PRAGMA quick_check(3)`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var fault string
			if err := rows.Scan(&fault); err != nil {
				return err
			}
			if fault != "ok" {
				faults = append(faults, fault)
			}
		}
		return rows.Err()
	})
	return faults, err
}

// folder examines where SQLite keeps the log, and we the lock, beside the file.
func (x *examination) folder(dir string) {
	const check = "database folder"
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		x.add(levelCritical, check, oneLine(err), "make it, and give it to the daemon's user")
		return
	case !info.IsDir():
		x.add(levelCritical, check, dir+" is no folder", "set database.path to a file in one")
		return
	}
	if err := writable(dir); err != nil {
		x.add(levelCritical, check, fmt.Sprintf("%s cannot be written by this user: %v", dir, err),
			"run doctor as the daemon's user; give the folder to it: SQLite writes its log beside the file")
		return
	}
	x.add(levelOK, check, dir+" can be written", "")
}

// file examines owner and permissions of the database and of the files that
// SQLite and we keep beside it. It reports whether it is there.
func (x *examination) file(path string) bool {
	const check = "database file"
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		x.add(levelWarning, check, path+" is not there", "none is needed before the first start: run makes it; otherwise restore it, or see database.path")
		return false
	case err != nil:
		x.add(levelCritical, check, oneLine(err), "let the daemon's user, and whoever runs doctor, into the folder")
		return false
	case !info.Mode().IsRegular():
		x.add(levelCritical, check, path+" is no file", "see database.path")
		return false
	}
	owner, known := ownerOf(info)
	for _, suffix := range []string{"-wal", "-shm", "-lock"} {
		beside, err := os.Stat(path + suffix)
		if err != nil || !known {
			continue
		}
		if other, known := ownerOf(beside); known && other != owner {
			x.add(levelCritical, check, fmt.Sprintf("%s belongs to user %d, %s%s to user %d", path, owner, filepath.Base(path), suffix, other),
				fmt.Sprintf("give it back: chown %d %s", owner, shellQuote(path+suffix)))
			return true
		}
	}
	if err := writable(path); err != nil {
		x.add(levelCritical, check, fmt.Sprintf("%s cannot be written by this user: %v", path, err), "run doctor as the daemon's user, or give the file to it")
		return true
	}
	if mode := info.Mode().Perm(); unixModes && mode&0o026 != 0 {
		x.add(levelWarning, check, fmt.Sprintf("%s has mode %04o: %s", path, mode, whoMay(mode)), "chmod 0600 "+shellQuote(path))
		return true
	}
	x.add(levelOK, check, fmt.Sprintf("%s, mode %04o", path, info.Mode().Perm()), "")
	return true
}

// whoMay says what of a mode is too much for a file that one user needs.
func whoMay(mode fs.FileMode) string {
	var who []string
	for _, w := range []struct {
		bit  fs.FileMode
		text string
	}{{0o020, "its group can write it"}, {0o004, "everybody can read it"}, {0o002, "everybody can write it"}} {
		if mode&w.bit != 0 {
			who = append(who, w.text)
		}
	}
	return strings.Join(who, ", ")
}

// space examines the limits at which the daemon stops consuming.
func (x *examination) space(path string) {
	const disk, size = "disk space", "database size"
	db := &x.cfg.Database
	free, err := gateway.DiskFree(filepath.Dir(path))
	limit := uint64(0)
	if db.MinFree != nil {
		limit = uint64(*db.MinFree)
	}
	text := fmt.Sprintf("%v free, database.min_free is %v", config.Size(free), config.Size(limit))
	switch {
	case err != nil:
		x.add(levelWarning, disk, "could not be found out: "+oneLine(err), "see that the folder of database.path is there")
	case free < limit:
		x.add(levelCritical, disk, text+": consuming stops, messages wait on the broker", "make room on the disk")
	case free < 2*limit:
		x.add(levelWarning, disk, text, "make room on the disk before consuming stops")
	default:
		x.add(levelOK, disk, text, "")
	}
	used := sizeOf(path) + sizeOf(path+"-wal")
	text = fmt.Sprintf("%v, database.max_size is %v", config.Size(used), db.MaxSize)
	switch most := int64(db.MaxSize); {
	case most == 0:
		x.add(levelOK, size, fmt.Sprintf("%v, without a limit", config.Size(used)), "")
	case used > most:
		x.add(levelCritical, size, text+": consuming stops, messages wait on the broker", "raise database.max_size and reload")
	case used > most-most/10:
		x.add(levelWarning, size, text, "raise database.max_size before consuming stops")
	default:
		x.add(levelOK, size, text, "")
	}
}

func sizeOf(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}
