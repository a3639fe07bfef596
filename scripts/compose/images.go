package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// makeImages gives the names in compose.yaml and in the Dockerfile images made
// of what this machine runs.
func (s *stack) makeImages(ctx context.Context) error {
	compose, err := os.ReadFile(filepath.Join(s.composeDir(), "compose.yaml"))
	if err != nil {
		return err
	}
	for variable, make := range map[string]func(context.Context, *image) error{
		"POSTGRES_IMAGE": postgresImage, "NATS_IMAGE": s.natsImage, "CADDY_IMAGE": caddyImage,
	} {
		found := regexp.MustCompile(`\$\{` + variable + `:-([^}]+)\}`).FindSubmatch(compose)
		if found == nil {
			return fmt.Errorf("compose.yaml asks for no %s", variable)
		}
		if err := s.importImage(ctx, string(found[1]), make); err != nil {
			return err
		}
	}
	dockerfile, err := os.ReadFile(s.path("src", "deploy", "Dockerfile"))
	if err != nil {
		return err
	}
	from := regexp.MustCompile(`(?m)^FROM (\S+) AS build$`).FindSubmatch(dockerfile)
	if from == nil {
		return fmt.Errorf("the Dockerfile has no stage build")
	}
	return s.importImage(ctx, "docker.io/library/"+string(from[1]), goImage)
}

func (s *stack) importImage(ctx context.Context, name string, make func(context.Context, *image) error) error {
	file, err := os.Create(s.path("image.tar"))
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	i := &image{tar: tar.NewWriter(file), have: map[string]bool{}}
	if err := make(ctx, i); err != nil {
		return fmt.Errorf("image %s: %w", name, err)
	}
	if err := i.tar.Close(); err != nil {
		return err
	}
	args := []string{"import"}
	for _, change := range i.changes {
		args = append(args, "--change", change)
	}
	_, err = s.tell(ctx, "podman", append(args, file.Name(), name)...)
	return err
}

// image is a file system in the making and what its containers start with.
type image struct {
	tar     *tar.Writer
	have    map[string]bool
	changes []string
}

func (i *image) add(h *tar.Header, content io.Reader) error {
	h.Name = strings.TrimPrefix(h.Name, "/")
	if i.have[h.Name] {
		return nil
	}
	i.have[h.Name] = true
	h.ModTime = time.Unix(0, 0)
	if err := i.tar.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.Copy(i.tar, content)
	return err
}

func (i *image) dir(path string, mode int64, user int) error {
	return i.add(&tar.Header{Typeflag: tar.TypeDir, Name: path + "/", Mode: mode, Uid: user, Gid: user}, strings.NewReader(""))
}

func (i *image) text(path, content string, mode int64) error {
	return i.add(&tar.Header{Name: path, Mode: mode, Size: int64(len(content))}, strings.NewReader(content))
}

// file adds the file that path leads to, under another name.
func (i *image) file(path, as string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return i.add(&tar.Header{Name: as, Mode: int64(info.Mode().Perm()), Size: info.Size()}, f)
}

// tree adds a folder of this machine where it is; links become what they lead to.
func (i *image) tree(root string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Stat(path)
		switch {
		case err != nil || entry.Type()&fs.ModeSymlink != 0 && info.IsDir():
			return nil // dangling, or seen elsewhere
		case info.IsDir():
			return i.dir(path, 0o755, 0)
		case info.Mode().IsRegular():
			return i.file(path, path)
		}
		return nil
	})
}

// program adds a program, and the libraries that it is linked to.
func (i *image) program(ctx context.Context, name, as string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	if err := i.file(path, as); err != nil {
		return err
	}
	return i.libraries(ctx, path)
}

func (i *image) libraries(ctx context.Context, path string) error {
	out, err := exec.CommandContext(ctx, "ldd", path).CombinedOutput()
	if err != nil && !bytes.Contains(out, []byte("not a dynamic executable")) {
		return fmt.Errorf("ldd %s: %w\n%s", path, err, out)
	}
	for _, match := range regexp.MustCompile(`(/\S+) \(0x`).FindAllSubmatch(out, -1) {
		if err := i.file(string(match[1]), string(match[1])); err != nil {
			return err
		}
	}
	return nil
}

const certificates = "/etc/ssl/certs/ca-certificates.crt"

// goImage has the Go of this machine, which also lends its module cache and
// build cache to the build (see up).
func goImage(ctx context.Context, i *image) error {
	goroot, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return err
	}
	root := strings.TrimSpace(string(goroot))
	i.changes = []string{"ENV PATH=" + root + "/bin:/bin", "ENV HOME=/root", "ENV GOMODCACHE=/host/mod", "ENV GOCACHE=/host/build"}
	for _, step := range []func() error{
		func() error { return i.dir("tmp", 0o1777, 0) },
		func() error { return i.file(certificates, certificates) },
		func() error { return i.program(ctx, "dash", "bin/sh") },
		func() error { return i.tree(root) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func caddyImage(ctx context.Context, i *image) error {
	i.changes = []string{`CMD ["/caddy","run","--config","/etc/caddy/Caddyfile","--adapter","caddyfile"]`, "ENV XDG_DATA_HOME=/data", "ENV XDG_CONFIG_HOME=/config"}
	return i.program(ctx, "caddy", "caddy")
}

// natsServer is the server of the module that the tests use.
const natsServer = "github.com/nats-io/nats-server/v2"

func (s *stack) natsImage(ctx context.Context, i *image) error {
	server := s.path("nats-server")
	build := exec.CommandContext(ctx, "go", "build", "-o", server, natsServer)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	i.changes = []string{`ENTRYPOINT ["/nats-server"]`}
	return i.file(server, "nats-server")
}

// startPostgres does of the official image's entry point what compose.yaml asks for.
const startPostgres = `#!/bin/sh
set -eu
data=${PGDATA:-/var/lib/postgresql/data}
if [ ! -s $data/PG_VERSION ]; then
	initdb -D $data -U "$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" -A scram-sha-256 -E UTF8 --locale=C.UTF-8 >/dev/null
	echo "host all all all scram-sha-256" >>$data/pg_hba.conf
	echo "CREATE DATABASE $POSTGRES_DB" | postgres --single -D $data postgres >/dev/null
fi
exec "$@" -D $data -c listen_addresses='*' -c unix_socket_directories=/tmp
`

const postgresUser = 999

// postgresBin is where the newest Postgres of this machine has its programs.
func postgresBin() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("there is no Postgres in /usr/lib/postgresql; %s", tools)
	}
	return found[len(found)-1], nil
}

func postgresImage(ctx context.Context, i *image) error {
	bin, err := postgresBin()
	if err != nil {
		return err
	}
	home := filepath.Dir(bin)
	i.changes = []string{"ENV PATH=" + bin + ":/bin", fmt.Sprintf("USER %d", postgresUser), `ENTRYPOINT ["/start"]`, `CMD ["postgres"]`}
	steps := []func() error{
		func() error { return i.text("start", startPostgres, 0o755) },
		func() error {
			return i.text("etc/passwd", fmt.Sprintf("postgres:x:%d:%d::/tmp:/bin/sh\n", postgresUser, postgresUser), 0o644)
		},
		func() error { return i.dir("tmp", 0o1777, 0) },
		func() error { return i.dir("var/lib/postgresql/data", 0o700, postgresUser) },
		func() error { return i.program(ctx, "dash", "bin/sh") },
		func() error { return i.tree(home) },
		func() error { return i.tree("/usr/share/postgresql/" + filepath.Base(home)) },
		func() error { return i.tree("/usr/lib/locale/C.utf8") },
		func() error { return i.tree("/usr/share/zoneinfo") },
	}
	for _, name := range []string{"postgres", "initdb", "pg_isready", "psql"} {
		steps = append(steps, func() error { return i.libraries(ctx, filepath.Join(bin, name)) })
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
