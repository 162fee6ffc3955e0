package inbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// networkFS names the network file system that holds path, or returns "" if it
// is local. If path does not exist yet, its directory is asked.
//
// SQLite's WAL needs memory shared between all users of the file and locks that
// hold, and a network file system promises neither. FUSE passes as local: the
// kernel does not tell what is behind it.
func networkFS(path string) (kind string, err error) {
	st, err := statfs(path)
	if errors.Is(err, fs.ErrNotExist) {
		st, err = statfs(filepath.Dir(path))
	}
	if err != nil {
		return "", fmt.Errorf("inbox: file system of %s: %w", path, err)
	}
	// Type is signed or not and 32 or 64 bits wide, depending on the machine. The
	// numbers have 32 bits, and converting to those drops a smeared sign.
	return networkFSName(uint32(st.Type)), nil
}

// networkFSName maps the kernel's magic number of a file system (linux/magic.h)
// to a name, "" for one that is not known to be on the network. The cluster file
// systems GFS2 and OCFS2 are not listed: they keep locks and mappings coherent.
func networkFSName(magic uint32) string {
	switch magic {
	case 0x6969:
		return "nfs"
	case 0x517B:
		return "smb"
	case 0xFF534D42:
		return "cifs"
	case 0xFE534D42:
		return "smb2"
	case 0x01021997:
		return "9p"
	case 0x5346414F, 0x6B414653: // OpenAFS, and the kernel's own client
		return "afs"
	case 0x73757245:
		return "coda"
	case 0x00C36400:
		return "ceph"
	case 0x564C:
		return "ncp"
	}
	return ""
}

// statfs calls statfs(2), again if a signal interrupts it.
func statfs(path string) (st syscall.Statfs_t, err error) {
	for {
		err = syscall.Statfs(path, &st)
		if err == nil {
			return st, nil
		}
		if err != syscall.EINTR {
			return st, &os.PathError{Op: "statfs", Path: path, Err: err}
		}
	}
}
