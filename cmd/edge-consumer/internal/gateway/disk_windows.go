package gateway

import "golang.org/x/sys/windows"

// DiskFree is the space that this user has left on the disk of a folder, in
// bytes.
func DiskFree(dir string) (uint64, error) {
	path, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return 0, err
	}
	var free, total, all uint64
	if err := windows.GetDiskFreeSpaceEx(path, &free, &total, &all); err != nil {
		return 0, err
	}
	return free, nil
}
