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
	var name []byte
	for _, c := range st.Fstypename {
		if c == 0 {
			break
		}
		name = append(name, byte(c))
	}
	return networkFSName(string(name)), nil
}

// networkFSName returns the system's name of a file system, "" for one that is
// not known to be on the network.
func networkFSName(fstype string) string {
	switch fstype {
	case "nfs", "smbfs", "cifs", "afpfs", "webdav", "ftp":
		return fstype
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
