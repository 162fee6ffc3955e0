//go:build unix

package main

import (
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"
)

// unixModes: the permissions of a file say who may use it.
const unixModes = true

// ownerOf is the user that a file belongs to.
func ownerOf(info fs.FileInfo) (uid uint32, known bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return st.Uid, true
}

// writable says why this process cannot write a file or a folder.
func writable(path string) error { return unix.Access(path, unix.W_OK) }
