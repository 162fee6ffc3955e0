package inbox

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"
)

// driveRemote is DRIVE_REMOTE of GetDriveType.
const driveRemote = 4

var procGetDriveType = syscall.NewLazyDLL("kernel32.dll").NewProc("GetDriveTypeW")

// networkFS returns "network share" for a UNC path and "network drive" for a
// drive letter that stands for one, or "" if path is local. If path does not
// exist yet, its directory is asked. Windows does not tell the protocol.
//
// SQLite's WAL needs memory shared between all users of the file and locks that
// hold, and a network file system promises neither.
func networkFS(path string) (kind string, err error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("inbox: file system of %s: %w", path, err)
	}
	// The path as given comes first: to resolve it could mean waiting for a
	// server that does not answer.
	kind, err = networkVolume(abs)
	if kind != "" || err != nil {
		return kind, err
	}
	// A local link can lead to a share.
	target, err := filepath.EvalSymlinks(abs)
	if errors.Is(err, fs.ErrNotExist) {
		target, err = filepath.EvalSymlinks(filepath.Dir(abs))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("inbox: file system of %s: %w", path, err)
	}
	if err != nil {
		// EvalSymlinks cannot resolve every local volume. The answer for the path
		// as given has to do.
		return "", nil
	}
	return networkVolume(target)
}

// networkVolume is networkFS for an absolute path, links not followed.
func networkVolume(path string) (kind string, err error) {
	if isUNC(path) {
		return "network share", nil
	}
	root, err := syscall.UTF16PtrFromString(filepath.VolumeName(path) + `\`)
	if err != nil {
		return "", fmt.Errorf("inbox: file system of %q: %w", path, err)
	}
	typ, _, _ := procGetDriveType.Call(uintptr(unsafe.Pointer(root)))
	if typ == driveRemote {
		return "network drive", nil
	}
	return "", nil
}

// isUNC reports whether path names a server, as \\server\share or in its long
// form \\?\UNC\server\share. Other paths that begin with \\?\ or \\.\ are local.
func isUNC(path string) bool {
	rest, ok := strings.CutPrefix(strings.ReplaceAll(path, "/", `\`), `\\`)
	if !ok {
		return false
	}
	if strings.HasPrefix(rest, `?\`) || strings.HasPrefix(rest, `.\`) {
		return len(rest) >= 6 && strings.EqualFold(rest[2:6], `UNC\`)
	}
	return true
}
