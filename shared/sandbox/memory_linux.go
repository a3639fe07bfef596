package sandbox

import "syscall"

const (
	tmpfs      = 0x01021994 // the type that Statfs tells of a file system in memory
	memoryRoom = 4 << 30    // bytes that must be free; what is needed is a tenth
)

// memory is a directory that is kept in memory, "" when there is none with room:
// that of a container has 64 MB.
func memory() string {
	const dir = "/dev/shm"
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil || fs.Type != tmpfs || fs.Bavail*uint64(fs.Bsize) < memoryRoom {
		return ""
	}
	return dir
}
