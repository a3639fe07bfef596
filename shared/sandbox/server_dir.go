package sandbox

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// serverDir has the files of one Postgres or PgBouncer:
//
//	dir/lock       locked by the process that started the server; contains the pid of that process
//	dir/data       the data directory
//	dir/socket     the directory of the socket; /tmp/so-... if this path is too long or needs quotes
//	dir/moved-to   if the user runAs may not enter dir: contains the path of the directory that
//	               has data and socket instead
type serverDir struct {
	root      string // the directory that has data: either dir, or the directory that the file moved-to names
	socket    string
	lock      *os.File
	temporary bool // close removes the directory
	closed    bool
	runAs     *syscall.Credential // the user that runs the server; nil = the user of this process
}

// maxSocketPath is the length of the longest path that fits in sun_path on both Linux and macOS.
const maxSocketPath = 103

// plainPath matches paths that need no quotes in a connection string and in unix_socket_directories.
var plainPath = regexp.MustCompile(`^[A-Za-z0-9/._-]+$`)

// openServerDir makes and locks dir. If dir is "", it makes a temporary directory in tempParent, or in
// the system's temporary directory if tempParent is "" too.
func openServerDir(dir, tempParent string, runAs *syscall.Credential) (_ *serverDir, err error) {
	p := &serverDir{runAs: runAs, temporary: dir == ""}
	if p.temporary {
		dir, err = os.MkdirTemp(tempParent, "so-")
	} else if dir, err = filepath.Abs(dir); err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	// If another process holds the lock, it runs a Postgres: a PgBouncer has a temporary directory, which is new.
	if p.lock, err = LockFile(filepath.Join(dir, "lock"), "a Postgres"); err != nil {
		return nil, err
	}
	if err := p.chooseDirs(dir); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// LockFile locks a file until the file is closed or this process ends. (If a child is being started at that moment, the
// child holds the lock until its exec.) If another process holds the lock, the error says that program (such as "a
// Postgres") is running, and has the pid of that process. Other users may not open the file, because a process that can
// open a file can lock it.
func LockFile(path, program string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		pid, _ := os.ReadFile(path)
		return nil, fmt.Errorf("%s is running in %s already, started by process %s: stop that first or use another directory",
			program, filepath.Dir(path), strings.TrimSpace(string(pid)))
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// chooseDirs chooses the root and the directory of the socket, and makes them.
func (p *serverDir) chooseDirs(dir string) error {
	p.root = dir
	if p.temporary {
		if err := p.chown(dir); err != nil {
			return err
		}
	}
	if !p.canEnter(dir) {
		if err := p.replaceDir(dir); err != nil {
			return err
		}
	}
	socket := filepath.Join(p.root, "socket")
	if len(socket)+len("/.s.PGSQL.5432") > maxSocketPath || !plainPath.MatchString(socket) {
		sum := sha256.Sum256([]byte(p.root))
		socket = filepath.Join("/tmp", "so-"+hex.EncodeToString(sum[:6]))
	}
	if err := p.makePrivate(socket); err != nil {
		return err
	}
	p.socket = socket // from now on, close removes it
	return nil
}

const replacementsParent = "/var/lib/sendonce"

// replaceDir finds or makes the directory that is used instead of dir: in /var/tmp if dir is temporary, else in
// replacementsParent. Only the file moved-to in dir has its path: if dir is removed, the next start begins without
// data.
func (p *serverDir) replaceDir(dir string) (err error) {
	if _, err := os.Stat(filepath.Join(dir, "data")); err == nil {
		return fmt.Errorf("user %d may not enter %s, which has a database: let the user enter it, or move its subdirectory data elsewhere", p.uid(), dir)
	}
	note := filepath.Join(dir, "moved-to")
	if text, err := os.ReadFile(note); err == nil {
		p.root = strings.TrimSpace(string(text))
		return p.makePrivate(p.root)
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if p.temporary {
		p.root, err = os.MkdirTemp("/var/tmp", "so-")
	} else if err = os.MkdirAll(replacementsParent, 0o755); err == nil {
		p.root, err = os.MkdirTemp(replacementsParent, "postgres-")
	}
	if err != nil {
		return err
	}
	return errors.Join(p.chown(p.root), os.WriteFile(note, []byte(p.root+"\n"), 0o644))
}

// makePrivate makes path a directory that only the user runAs may enter. It refuses a directory of another user,
// because any user can guess the names in /tmp.
func (p *serverDir) makePrivate(path string) error {
	if err := os.Mkdir(path, 0o700); err == nil {
		return p.chown(path)
	} else if !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(stat.Uid) != p.uid() {
		return fmt.Errorf("%s exists, but it is not a directory of user %d: remove it", path, p.uid())
	}
	return os.Chmod(path, 0o700)
}

func (p *serverDir) chown(path string) error {
	if p.runAs == nil {
		return nil
	}
	return os.Lchown(path, int(p.runAs.Uid), int(p.runAs.Gid))
}

func (p *serverDir) uid() int {
	if p.runAs == nil {
		return os.Geteuid()
	}
	return int(p.runAs.Uid)
}

// canEnter reports whether the user runAs may enter dir. It tries, because mode bits are not the only permissions.
func (p *serverDir) canEnter(dir string) bool {
	if p.runAs == nil {
		return true
	}
	cd := exec.Command("/bin/sh", "-c", `cd "$1"`, "sh", dir)
	cd.Dir = "/"
	cd.SysProcAttr = &syscall.SysProcAttr{Credential: p.runAs}
	return cd.Run() == nil
}

func (p *serverDir) data() string { return filepath.Join(p.root, "data") }

// close removes the directory of the socket, and dir if it is temporary, and unlocks dir. A second call does nothing.
func (p *serverDir) close() error {
	if p.closed {
		return nil
	}
	p.closed = true
	var errs []error
	if p.socket != "" {
		errs = append(errs, os.RemoveAll(p.socket))
	}
	if p.temporary {
		errs = append(errs, os.RemoveAll(p.root), os.RemoveAll(filepath.Dir(p.lock.Name())))
	}
	// It is not enough to close the file: a process that is being started has a copy of the
	// descriptor, and with it the lock, until its exec.
	errs = append(errs, syscall.Flock(int(p.lock.Fd()), syscall.LOCK_UN))
	return errors.Join(append(errs, p.lock.Close())...)
}

// unprivileged returns the user to run Postgres as: postgres or nobody if this process
// is root, else nil.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		u, err = user.Lookup("nobody")
	}
	if err != nil {
		return nil, errors.New("Postgres does not run as root and there is neither a user postgres nor nobody: add one")
	}
	uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(uidErr, gidErr); err != nil {
		return nil, fmt.Errorf("user %s: %w", u.Username, err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}
