package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Inside is a world of its own that this program starts itself again in: a
// network that has nothing but loopback, a tree of files where everything stands
// at the place that compose gives it, and process ids that all end with ours.
const insideVariable = "SENDONCE_ROLLING"

const endLimit = 40 * time.Second // more than any service takes to end

func isInside() bool { return os.Getenv(insideVariable) != "" }

// inside carries out the plan and gives the exit code.
func inside() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var plan rollingPlan
	err := json.Unmarshal([]byte(os.Getenv(insideVariable)), &plan)
	if err == nil {
		err = plan.run(ctx)
	}
	if err != nil {
		log.Print("rolling: ", err)
		return 1
	}
	return 0
}

// goInside starts this program again with the plan and waits for its end, which
// is the end of all that it started, however it comes about.
func goInside(ctx context.Context, plan rollingPlan) error {
	text, err := json.Marshal(plan)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideVariable+"="+string(text))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = namespaces()
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = endLimit
	runtime.LockOSThread() // the end of the thread that started it would be taken for ours
	defer runtime.UnlockOSThread()
	return cmd.Run()
}

// namespaces are what makes a world of its own.
func namespaces() *syscall.SysProcAttr {
	attributes := &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
		Setpgid:    true,
	}
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
		// Under its own id, as Postgres does not run under that of root.
		const netAdmin, sysChroot, sysAdmin = 12, 18, 21
		attributes.Cloneflags |= syscall.CLONE_NEWUSER
		attributes.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		attributes.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		attributes.AmbientCaps = []uintptr{netAdmin, sysChroot, sysAdmin}
	}
	return attributes
}

// haveTools looks for the programs of this machine that are needed, and whether
// it gives namespaces.
func haveTools() error {
	_, err := postgresBin()
	for _, name := range []string{"caddy", "ip", "wget"} {
		if _, missing := exec.LookPath(name); missing != nil {
			err = errors.Join(err, missing)
		}
	}
	if err != nil {
		return fmt.Errorf("%w\non Debian: apt-get install -y --no-install-recommends caddy iproute2 postgresql wget", err)
	}
	try := exec.Command("ip", "link", "set", "lo", "up")
	try.SysProcAttr = namespaces()
	if out, err := try.CombinedOutput(); err != nil {
		return fmt.Errorf("this machine gives no namespaces: run it as root, or let users make their own: %w\n%s", err, out)
	}
	return nil
}

// network is where the services have their addresses. On the loopback device all of
// it is ours. gateway is the address that TRUSTED_PROXIES names: the device has it, so
// all calls come from there.
const (
	network = "10.77.0."
	gateway = 250
)

func address(n int) string { return fmt.Sprint(network, n) }

// furnish makes the tree of files: that of the machine, but for what compose has
// its services find, which is copied from dir.
func (f composeFile) furnish(ctx context.Context, dir string, programs map[string]string) error {
	for _, args := range [][]string{{"link", "set", "lo", "up"}, {"address", "add", address(gateway) + "/24", "dev", "lo"}} {
		if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	root := filepath.Join(dir, "root")
	if err := errors.Join(
		syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""),
		os.Mkdir(root, 0o755),
		syscall.Mount("tmpfs", root, "tmpfs", 0, "mode=755"),
	); err != nil {
		return fmt.Errorf("a tree of files of its own: %w", err)
	}
	if err := errors.Join(
		mirror("/", root, "etc", "run", "data", "config", "tmp"),
		mirror("/etc", filepath.Join(root, "etc"), "hosts", "caddy", "nats"),
	); err != nil {
		return err
	}
	for _, open := range []string{"data", "config", "tmp"} { // volumes of nats and of the gateway, and where Postgres has its socket
		path := filepath.Join(root, open)
		if err := errors.Join(os.Mkdir(path, 0o755), os.Chmod(path, 0o777)); err != nil {
			return err
		}
	}
	if err := errors.Join(
		os.MkdirAll(filepath.Join(root, dir), 0o755),
		syscall.Mount(dir, filepath.Join(root, dir), "", syscall.MS_BIND, ""),
	); err != nil {
		return err
	}
	for from, to := range f.files(programs) {
		if !filepath.IsAbs(from) {
			from = filepath.Join(dir, "compose", from)
		}
		if err := bind(from, filepath.Join(root, to)); err != nil {
			return err
		}
	}
	hosts := "127.0.0.1 localhost\n"
	for i, name := range f.names() {
		hosts += address(i+2) + " " + name + "\n"
	}
	if err := os.WriteFile(filepath.Join(root, "etc", "hosts"), []byte(hosts), 0o644); err != nil {
		return err
	}
	return errors.Join(syscall.Chroot(root), os.Chdir("/"))
}

// files gives what stands where: the programs, and the files of compose.yaml.
func (f composeFile) files(programs map[string]string) map[string]string {
	all := map[string]string{}
	for from, to := range programs {
		all[from] = to
	}
	for name, secret := range f.Secrets {
		all[secret.File] = "/run/secrets/" + name
	}
	for _, s := range f.Services {
		for _, volume := range s.Volumes {
			if parts := strings.Split(volume, ":"); strings.HasPrefix(parts[0], ".") {
				all[parts[0]] = parts[1]
			}
		}
	}
	return all
}

// mirror shows in to what is in from, but for a few names.
func mirror(from, to string, except ...string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	hidden := map[string]bool{}
	for _, name := range except {
		hidden[name] = true
	}
	for _, entry := range entries {
		if hidden[entry.Name()] {
			continue
		}
		source, target := filepath.Join(from, entry.Name()), filepath.Join(to, entry.Name())
		if entry.Type()&os.ModeSymlink != 0 {
			leads, err := os.Readlink(source)
			if err := errors.Join(err, os.Symlink(leads, target)); err != nil {
				return err
			}
			continue
		}
		if err := bind(source, target); err != nil {
			return err
		}
	}
	return nil
}

// bind shows the file or folder from at the path to.
func bind(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(to, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(to), 0o755); err == nil {
		err = os.WriteFile(to, nil, 0o644)
	}
	if err == nil {
		err = syscall.Mount(from, to, "", syscall.MS_BIND|syscall.MS_REC, "")
	}
	if err != nil {
		return fmt.Errorf("show %s at %s: %w", from, to, err)
	}
	return nil
}
