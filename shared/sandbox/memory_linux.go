package sandbox

import "syscall"

const (
	tmpfs      = 0x01021994 // the type of a file system in memory
	memoryRoom = 4 << 30    // bytes that must be free; tests need a tenth of them
)

// memoryDir returns a directory in memory, or "" if there is none with enough space: in a container /dev/shm often has
// 64 MB.
func memoryDir() string {
	const dir = "/dev/shm"
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil || fs.Type != tmpfs || fs.Bavail*uint64(fs.Bsize) < memoryRoom {
		return ""
	}
	return dir
}
