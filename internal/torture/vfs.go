//go:build linux || darwin

// Package torture is the lab that tries to break the inbox: it records what the
// database writes, builds the files that a power cut could have left, makes the
// disk fail at every step, and looks whether the promise still holds.
package torture

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// The shim stands between SQLite and its file system layer, as the default VFS
// of this process: it is a copy of the layer, with some of its functions
// replaced. https://sqlite.org/vfs.html

// An Op is one thing that SQLite asked of the disk.
type Op struct {
	Kind OpKind
	File string // its name, without the folder
	Off  int64
	Data []byte // of a Write
	Size int64  // of a Truncate
	Dir  bool   // of a Sync or Delete: the folder was synced too
	Mark string // of a Mark: what happened in between, for the checks
}

// An OpKind is the kind of an Op.
type OpKind int

const (
	Open OpKind = iota
	Read
	Write
	Truncate
	Sync
	Delete
	Lock
	Shm  // the shared memory beside the log
	Stat // the size of a file
	Mark
)

func (k OpKind) String() string {
	return [...]string{"open", "read", "write", "truncate", "sync", "delete", "lock", "shm", "stat", "mark"}[k]
}

// A Disk watches the files of one folder.
type Disk struct {
	dir string

	mu    sync.Mutex
	log   []Op
	fault func(k OpKind, file string) (code int32)
}

var shim struct {
	once  sync.Once
	base  sqlite3.Tsqlite3_vfs
	baseP uintptr

	mu      sync.Mutex
	disks   []*Disk
	files   map[uintptr]*file   // by sqlite3_file
	methods map[uintptr]uintptr // ours, by the original's address
}

// A file is one that SQLite has open.
type file struct {
	disk *Disk
	name string
	base *sqlite3.Tsqlite3_io_methods
	made bool // a journal that is new: SQLite syncs the folder with it, once
}

// Watch begins to watch a folder. Files that are opened from then on are
// watched until stop is called.
func Watch(dir string) (d *Disk, stop func()) {
	shim.once.Do(register)
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		real = dir
	}
	d = &Disk{dir: real}
	shim.mu.Lock()
	shim.disks = append(shim.disks, d)
	shim.mu.Unlock()
	return d, func() {
		shim.mu.Lock()
		defer shim.mu.Unlock()
		for i, other := range shim.disks {
			if other == d {
				shim.disks = append(shim.disks[:i], shim.disks[i+1:]...)
				return
			}
		}
	}
}

// Mark notes in the log that something has happened.
func (d *Disk) Mark(what string) { d.record(Op{Kind: Mark, Mark: what}) }

// Log is what happened so far.
func (d *Disk) Log() []Op {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]Op(nil), d.log...)
}

// Fail asks fn before everything that is done: another answer than 0 is
// SQLite's result code, and it is not done. nil: nothing fails.
func (d *Disk) Fail(fn func(k OpKind, file string) int32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = fn
}

func (d *Disk) record(op Op) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log = append(d.log, op)
}

func (d *Disk) fails(k OpKind, name string) int32 {
	d.mu.Lock()
	fn := d.fault
	d.mu.Unlock()
	if fn == nil {
		return 0
	}
	return fn(k, name)
}

// register makes the shim the default VFS.
func register() {
	tls := libc.NewTLS()
	shim.baseP = sqlite3.Xsqlite3_vfs_find(tls, 0)
	shim.base = *at[sqlite3.Tsqlite3_vfs](shim.baseP)
	shim.files = map[uintptr]*file{}
	shim.methods = map[uintptr]uintptr{}
	name, err := libc.CString("torture")
	if err != nil {
		panic(err)
	}
	vfs := shim.base
	vfs.FpNext, vfs.FzName = 0, name
	vfs.FxOpen = pointer(xOpen)
	vfs.FxDelete = pointer(xDelete)
	if rc := sqlite3.Xsqlite3_vfs_register(tls, inC(tls, vfs), 1); rc != 0 {
		panic(rc)
	}
}

// inC copies v to C's memory, for good: what SQLite keeps the address of must
// not be Go's.
func inC[T any](tls *libc.TLS, v T) uintptr {
	p := libc.Xmalloc(tls, libc.Tsize_t(unsafe.Sizeof(v)))
	if p == 0 {
		panic("out of memory")
	}
	*at[T](p) = v
	return p
}

// pointer is a Go function as the transpiled C calls it.
func pointer[F any](f F) uintptr { return *(*uintptr)(unsafe.Pointer(&struct{ f F }{f})) }

// function is what such a pointer stands for.
func function[F any](p uintptr) F { return *(*F)(unsafe.Pointer(&struct{ p uintptr }{p})) }

// at is what lies at an address in C's memory.
func at[T any](p uintptr) *T { return *(**T)(unsafe.Pointer(&p)) }

type (
	openFunc     = func(tls *libc.TLS, vfs, name, f uintptr, flags int32, out uintptr) int32
	deleteFunc   = func(tls *libc.TLS, vfs, name uintptr, dirSync int32) int32
	closeFunc    = func(tls *libc.TLS, f uintptr) int32
	readFunc     = func(tls *libc.TLS, f, buf uintptr, n int32, off int64) int32
	truncateFunc = func(tls *libc.TLS, f uintptr, size int64) int32
	syncFunc     = func(tls *libc.TLS, f uintptr, flags int32) int32
	shmFunc      = func(tls *libc.TLS, f uintptr, region, size, extend int32, out uintptr) int32
	sizeFunc     = func(tls *libc.TLS, f, out uintptr) int32
)

// watched is the disk that a path is on, and the file's name; nil for others.
func watched(path string) (*Disk, string) {
	dir, name := filepath.Split(path)
	dir = strings.TrimSuffix(dir, "/")
	shim.mu.Lock()
	defer shim.mu.Unlock()
	for _, d := range shim.disks {
		if d.dir == dir {
			return d, name
		}
	}
	return nil, ""
}

func xOpen(tls *libc.TLS, vfs, name, f uintptr, flags int32, out uintptr) int32 {
	var disk *Disk
	var base string
	if name != 0 {
		disk, base = watched(libc.GoString(name))
	}
	made := false
	if disk != nil {
		_, err := os.Lstat(filepath.Join(disk.dir, base))
		made = err != nil && flags&(sqlite3.SQLITE_OPEN_MAIN_JOURNAL|sqlite3.SQLITE_OPEN_WAL) != 0
		if rc := disk.fails(Open, base); rc != 0 {
			at[sqlite3.Tsqlite3_file](f).FpMethods = 0
			return rc
		}
	}
	rc := function[openFunc](shim.base.FxOpen)(tls, shim.baseP, name, f, flags, out)
	sf := at[sqlite3.Tsqlite3_file](f)
	if disk == nil || rc != 0 || sf.FpMethods == 0 {
		return rc
	}
	original := at[sqlite3.Tsqlite3_io_methods](sf.FpMethods)
	shim.mu.Lock()
	ours := shim.methods[sf.FpMethods]
	if ours == 0 {
		m := *original
		m.FxClose, m.FxRead, m.FxWrite = pointer(xClose), pointer(xRead), pointer(xWrite)
		m.FxTruncate, m.FxSync, m.FxLock = pointer(xTruncate), pointer(xSync), pointer(xLock)
		m.FxShmMap, m.FxFileSize = pointer(xShmMap), pointer(xFileSize)
		ours = inC(tls, m)
		shim.methods[sf.FpMethods] = ours
	}
	shim.files[f] = &file{disk, base, original, made}
	shim.mu.Unlock()
	sf.FpMethods = ours
	disk.record(Op{Kind: Open, File: base})
	return rc
}

func xDelete(tls *libc.TLS, vfs, name uintptr, dirSync int32) int32 {
	disk, base := watched(libc.GoString(name))
	if disk != nil {
		if rc := disk.fails(Delete, base); rc != 0 {
			return rc
		}
	}
	rc := function[deleteFunc](shim.base.FxDelete)(tls, shim.baseP, name, dirSync)
	if disk != nil && rc == 0 {
		disk.record(Op{Kind: Delete, File: base, Dir: dirSync != 0})
	}
	return rc
}

func opened(f uintptr) *file {
	shim.mu.Lock()
	defer shim.mu.Unlock()
	return shim.files[f]
}

func xClose(tls *libc.TLS, f uintptr) int32 {
	shim.mu.Lock()
	of := shim.files[f]
	delete(shim.files, f)
	shim.mu.Unlock()
	return function[closeFunc](of.base.FxClose)(tls, f)
}

// perform does something to an open file, unless the disk fails it.
func perform(f uintptr, k OpKind, do func(of *file) int32) (of *file, rc int32) {
	of = opened(f)
	if rc = of.disk.fails(k, of.name); rc == 0 {
		rc = do(of)
	}
	return of, rc
}

func xRead(tls *libc.TLS, f, buf uintptr, n int32, off int64) int32 {
	clear(unsafe.Slice(at[byte](buf), n)) // what a short read lacks reads as zeros
	_, rc := perform(f, Read, func(of *file) int32 { return function[readFunc](of.base.FxRead)(tls, f, buf, n, off) })
	return rc
}

func xWrite(tls *libc.TLS, f, buf uintptr, n int32, off int64) int32 {
	of, rc := perform(f, Write, func(of *file) int32 { return function[readFunc](of.base.FxWrite)(tls, f, buf, n, off) })
	if rc == 0 {
		data := bytes.Clone(unsafe.Slice(at[byte](buf), n))
		of.disk.record(Op{Kind: Write, File: of.name, Off: off, Data: data})
	}
	return rc
}

func xTruncate(tls *libc.TLS, f uintptr, size int64) int32 {
	of, rc := perform(f, Truncate, func(of *file) int32 { return function[truncateFunc](of.base.FxTruncate)(tls, f, size) })
	if rc == 0 {
		of.disk.record(Op{Kind: Truncate, File: of.name, Size: size})
	}
	return rc
}

func xSync(tls *libc.TLS, f uintptr, flags int32) int32 {
	of, rc := perform(f, Sync, func(of *file) int32 { return function[syncFunc](of.base.FxSync)(tls, f, flags) })
	if rc == 0 {
		of.disk.record(Op{Kind: Sync, File: of.name, Dir: of.made})
		of.made = false
	}
	return rc
}

func xLock(tls *libc.TLS, f uintptr, level int32) int32 {
	_, rc := perform(f, Lock, func(of *file) int32 { return function[syncFunc](of.base.FxLock)(tls, f, level) })
	return rc
}

func xShmMap(tls *libc.TLS, f uintptr, region, size, extend int32, out uintptr) int32 {
	*at[uintptr](out) = 0
	_, rc := perform(f, Shm, func(of *file) int32 {
		return function[shmFunc](of.base.FxShmMap)(tls, f, region, size, extend, out)
	})
	return rc
}

func xFileSize(tls *libc.TLS, f, out uintptr) int32 {
	_, rc := perform(f, Stat, func(of *file) int32 { return function[sizeFunc](of.base.FxFileSize)(tls, f, out) })
	return rc
}
