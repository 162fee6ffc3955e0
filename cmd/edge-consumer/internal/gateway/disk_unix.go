//go:build unix

package gateway

import "golang.org/x/sys/unix"

// DiskFree is the space that this user has left on the disk of a folder, in
// bytes.
func DiskFree(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return uint64(st.Bavail) * uint64(st.Bsize), nil
}
