package main

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// A slow disk: the default VFS of this process becomes a copy of SQLite's own
// whose xSync waits first, one at a time: a card flushes for one caller after the
// other. https://sqlite.org/vfs.html

var slowVFS struct {
	once  sync.Once
	delay atomic.Int64
	syncs atomic.Int64
	disk  sync.Mutex // held by the sync that is on
	base  sqlite3.Tsqlite3_vfs
	baseP uintptr
	vfs   sqlite3.Tsqlite3_vfs

	mu    sync.Mutex
	files map[uintptr]uintptr                      // the original methods, by sqlite3_file
	ours  map[uintptr]*sqlite3.Tsqlite3_io_methods // by the originals' address
}

type (
	vfsOpen  = func(tls *libc.TLS, vfs, name, f uintptr, flags int32, out uintptr) int32
	vfsClose = func(tls *libc.TLS, f uintptr) int32
	vfsSync  = func(tls *libc.TLS, f uintptr, flags int32) int32
)

// slowSync makes each sync of files that are opened from now on take d longer.
func slowSync(d time.Duration) {
	slowVFS.once.Do(func() {
		tls := libc.NewTLS()
		slowVFS.files, slowVFS.ours = map[uintptr]uintptr{}, map[uintptr]*sqlite3.Tsqlite3_io_methods{}
		slowVFS.baseP = sqlite3.Xsqlite3_vfs_find(tls, 0)
		slowVFS.base = *cAt[sqlite3.Tsqlite3_vfs](slowVFS.baseP)
		slowVFS.vfs = slowVFS.base
		slowVFS.vfs.FpNext, slowVFS.vfs.FzName = 0, get(libc.CString("slow"))
		slowVFS.vfs.FxOpen = cPointer(slowOpen)
		rc := sqlite3.Xsqlite3_vfs_register(tls, uintptr(unsafe.Pointer(&slowVFS.vfs)), 1)
		require(rc == 0, "registering the VFS: code %d", rc)
	})
	slowVFS.delay.Store(int64(d))
}

// syncs is how many there were through the slow VFS.
func syncs() int64 { return slowVFS.syncs.Load() }

// cPointer is a Go function as the transpiled C calls it, cFunc the other way, cAt
// what lies at an address in C's memory.
func cPointer[F any](f F) uintptr { return *(*uintptr)(unsafe.Pointer(&struct{ f F }{f})) }
func cFunc[F any](p uintptr) F    { return *(*F)(unsafe.Pointer(&struct{ p uintptr }{p})) }
func cAt[T any](p uintptr) *T     { return *(**T)(unsafe.Pointer(&p)) }

func slowOpen(tls *libc.TLS, vfs, name, f uintptr, flags int32, out uintptr) int32 {
	rc := cFunc[vfsOpen](slowVFS.base.FxOpen)(tls, slowVFS.baseP, name, f, flags, out)
	sf := cAt[sqlite3.Tsqlite3_file](f)
	if rc != 0 || sf.FpMethods == 0 {
		return rc
	}
	slowVFS.mu.Lock()
	defer slowVFS.mu.Unlock()
	ours := slowVFS.ours[sf.FpMethods]
	if ours == nil {
		m := *cAt[sqlite3.Tsqlite3_io_methods](sf.FpMethods)
		m.FxClose, m.FxSync = cPointer(closeSlow), cPointer(syncSlow)
		ours = &m
		slowVFS.ours[sf.FpMethods] = ours
	}
	slowVFS.files[f] = sf.FpMethods
	sf.FpMethods = uintptr(unsafe.Pointer(ours))
	return rc
}

func originals(f uintptr, closing bool) *sqlite3.Tsqlite3_io_methods {
	slowVFS.mu.Lock()
	defer slowVFS.mu.Unlock()
	m := slowVFS.files[f]
	if closing {
		delete(slowVFS.files, f)
	}
	return cAt[sqlite3.Tsqlite3_io_methods](m)
}

func closeSlow(tls *libc.TLS, f uintptr) int32 {
	return cFunc[vfsClose](originals(f, true).FxClose)(tls, f)
}

func syncSlow(tls *libc.TLS, f uintptr, flags int32) int32 {
	slowVFS.syncs.Add(1)
	slowVFS.disk.Lock()
	defer slowVFS.disk.Unlock()
	time.Sleep(time.Duration(slowVFS.delay.Load()))
	return cFunc[vfsSync](originals(f, false).FxSync)(tls, f, flags)
}
