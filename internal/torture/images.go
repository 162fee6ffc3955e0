//go:build linux || darwin

package torture

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
)

// Files are the contents of a folder, by name.
type Files map[string][]byte

// sector is what a disk writes at once, in bytes.
const sector = 512

// A Crash is the state of a disk at a point of its log: what is certainly there
// and what may be.
type Crash struct {
	durable Files
	pending []Op // since the last sync of their file, in order
}

// Replay goes through a log and calls fn after each of its operations that
// changes something, with the crash that could happen there. The crash is valid
// during the call only.
func Replay(log []Op, fn func(i int, c *Crash) error) error {
	c := &Crash{durable: Files{}}
	for i, op := range log {
		switch op.Kind {
		case Write, Truncate, Delete:
			c.pending = append(c.pending, op)
			if op.Dir {
				c.syncFolder()
			}
		case Sync:
			c.sync(op.File)
			if op.Dir {
				c.syncFolder()
			}
		default:
			continue
		}
		if err := fn(i, c); err != nil {
			return err
		}
	}
	return nil
}

// sync makes what is pending for a file durable.
func (c *Crash) sync(name string) {
	c.pending = slices.DeleteFunc(c.pending, func(op Op) bool {
		if op.File == name {
			apply(c.durable, op, nil)
		}
		return op.File == name
	})
}

// syncFolder makes deletions durable: until then a file may come back.
func (c *Crash) syncFolder() {
	c.pending = slices.DeleteFunc(c.pending, func(op Op) bool {
		if op.Kind == Delete {
			apply(c.durable, op, nil)
		}
		return op.Kind == Delete
	})
}

// apply does op. keep, if not nil, says which sectors of a write got through.
func apply(files Files, op Op, keep func() bool) {
	switch op.Kind {
	case Delete:
		delete(files, op.File)
	case Truncate:
		b := files[op.File]
		if int64(len(b)) > op.Size {
			files[op.File] = b[:op.Size:op.Size]
		} else {
			files[op.File] = append(b[:len(b):len(b)], make([]byte, op.Size-int64(len(b)))...)
		}
	case Write:
		b := files[op.File]
		if end := op.Off + int64(len(op.Data)); int64(len(b)) < end {
			b = append(b[:len(b):len(b)], make([]byte, end-int64(len(b)))...)
		} else {
			b = slices.Clone(b)
		}
		for at := 0; at < len(op.Data); {
			// To the next border between sectors of the disk.
			n := min(sector-int((op.Off+int64(at))%sector), len(op.Data)-at)
			if keep == nil || keep() {
				copy(b[op.Off+int64(at):], op.Data[at:at+n])
			}
			at += n
		}
		files[op.File] = b
	}
}

// A Loss says what of the unsynced writes gets through.
type Loss int

const (
	Nothing Loss = iota // nothing after the last sync
	All                 // everything
	Some                // any subset of the writes
	Torn                // any subset of their sectors
	Losses
)

// Image is the files that the crash leaves.
func (c *Crash) Image(loss Loss, r *rand.Rand) Files {
	files := Files{}
	for name, b := range c.durable {
		files[name] = b
	}
	for _, op := range c.pending {
		switch {
		case loss == All:
			apply(files, op, nil)
		case loss == Some && r.IntN(2) == 0:
			apply(files, op, nil)
		case loss == Torn && op.Kind == Write:
			apply(files, op, func() bool { return r.IntN(2) == 0 })
		case loss == Torn && r.IntN(2) == 0:
			apply(files, op, nil)
		}
	}
	return files
}

// Pending is how many operations are uncertain.
func (c *Crash) Pending() int { return len(c.pending) }

// Write puts the files into a folder.
func (f Files) Write(dir string) error {
	for name, b := range f {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			return err
		}
	}
	return nil
}
