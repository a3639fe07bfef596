package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// image lists the contents of a container image. Files have the same paths in the image as on this machine.
type image struct {
	programs []string                // copied with the libraries that they are linked to
	paths    []string                // further files and folders
	files    func(root string) error // writes further files below root; nil = none
	changes  []string                // instructions of a Dockerfile, for podman import
}

// baseImages returns the names of the images that are not built from this repository: those in
// compose.yaml by their variable, and the base image of the Dockerfile as "GO_IMAGE".
func baseImages(repository string) (map[string]string, error) {
	compose, err := os.ReadFile(filepath.Join(repository, "deploy", "compose", "compose.yaml"))
	dockerfile, err2 := os.ReadFile(filepath.Join(repository, "deploy", "Dockerfile"))
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	names := map[string]string{}
	for _, match := range regexp.MustCompile(`\$\{(\w+_IMAGE):-([^}]+)\}`).FindAllSubmatch(compose, -1) {
		names[string(match[1])] = string(match[2])
	}
	if from := regexp.MustCompile(`(?m)^FROM (\S+) AS build$`).FindSubmatch(dockerfile); from != nil {
		names["GO_IMAGE"] = "docker.io/library/" + string(from[1])
	}
	return names, nil
}

// makeImages makes images from the programs of this machine, under the names that the images have in a registry.
func (s *stack) makeImages(ctx context.Context) error {
	names, err := baseImages(s.repository)
	if err != nil {
		return err
	}
	for variable, describe := range map[string]func(context.Context) (image, error){
		"POSTGRES_IMAGE": postgresImage, "NATS_IMAGE": natsImage, "CADDY_IMAGE": caddyImage, "PROMETHEUS_IMAGE": prometheusImage, "GO_IMAGE": goImage,
	} {
		i, err := describe(ctx)
		if err == nil {
			err = s.importImage(ctx, names[variable], i)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", variable, err)
		}
	}
	return nil
}

// importImage collects the contents of i in an archive, and imports the archive into podman as the image name.
func (s *stack) importImage(ctx context.Context, name string, i image) error {
	root, archive := s.path("root"), s.path("image.tar")
	defer os.RemoveAll(root)
	defer os.Remove(archive)
	if err := errors.Join(os.Mkdir(root, 0o755), os.Mkdir(filepath.Join(root, "tmp"), 0o755), os.Chmod(filepath.Join(root, "tmp"), 0o777|os.ModeSticky)); err != nil {
		return err
	}
	if i.files != nil {
		if err := i.files(root); err != nil {
			return err
		}
	}
	files, err := i.filesOfPrograms(ctx)
	if err != nil {
		return err
	}
	// --dereference: a link becomes a copy of its target. --ignore-failed-read: broken links are left out.
	args := append([]string{"-C", "/", "--dereference", "--ignore-failed-read", "-cf", archive}, slices.Concat(i.paths, files)...)
	if _, err := s.output(ctx, "tar", args...); err != nil {
		return err
	}
	if _, err := s.output(ctx, "tar", "-C", root, "-rf", archive, "."); err != nil {
		return err
	}
	args = []string{"import"}
	for _, change := range i.changes {
		args = append(args, "--change", change)
	}
	_, err = s.output(ctx, "podman", append(args, archive, name)...)
	return err
}

// filesOfPrograms returns the files of i.programs and of their libraries. An image must not have a file twice, so
// filesOfPrograms returns each file once and leaves out files in i.paths.
func (i image) filesOfPrograms(ctx context.Context) (files []string, err error) {
	for _, program := range i.programs {
		path, err := exec.LookPath(program)
		if err != nil {
			return nil, err
		}
		libraries, err := librariesOf(ctx, path)
		if err != nil {
			return nil, err
		}
		files = append(append(files, path), libraries...)
	}
	slices.Sort(files)
	return slices.DeleteFunc(slices.Compact(files), func(file string) bool {
		return slices.ContainsFunc(i.paths, func(folder string) bool { return strings.HasPrefix(file, folder+"/") })
	}), nil
}

// librariesOf returns the paths of the shared libraries of a program.
func librariesOf(ctx context.Context, program string) (libraries []string, err error) {
	out, err := exec.CommandContext(ctx, "ldd", program).CombinedOutput()
	if err != nil && !bytes.Contains(out, []byte("not a dynamic executable")) {
		return nil, fmt.Errorf("ldd %s: %w\n%s", program, err, out)
	}
	for _, match := range regexp.MustCompile(`(/\S+) \(0x`).FindAllSubmatch(out, -1) {
		libraries = append(libraries, string(match[1]))
	}
	return libraries, nil
}

// goImage describes an image with the Go of this machine. Its builds use the caches of this machine.
func goImage(ctx context.Context) (image, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	root := strings.TrimSpace(string(out))
	return image{
		programs: []string{"/bin/sh"},
		paths:    []string{root, "/etc/ssl/certs/ca-certificates.crt"},
		changes:  []string{"ENV PATH=" + root + "/bin:/bin", "ENV HOME=/root", "ENV GOMODCACHE=/host/mod", "ENV GOCACHE=/host/build"},
	}, err
}

func caddyImage(ctx context.Context) (image, error) {
	version, err := exec.CommandContext(ctx, "caddy", "version").Output()
	log.Printf("     the gateway is Caddy %s", bytes.TrimSpace(version))
	return image{
		programs: []string{"caddy", "wget"},
		changes: []string{`CMD ["caddy","run","--config","/etc/caddy/Caddyfile","--adapter","caddyfile"]`, "ENV PATH=/usr/local/bin:/usr/bin",
			"ENV XDG_DATA_HOME=/data", "ENV XDG_CONFIG_HOME=/config"},
	}, err
}

func prometheusImage(context.Context) (image, error) {
	return image{
		programs: []string{"prometheus", "wget"},
		changes:  []string{`ENTRYPOINT ["prometheus"]`, "ENV PATH=/usr/bin", fmt.Sprintf("USER %d", prometheusUser)},
		files: func(root string) error {
			data := filepath.Join(root, "prometheus")
			return errors.Join(os.Mkdir(data, 0o700), os.Chown(data, prometheusUser, prometheusUser))
		},
	}, nil
}

const prometheusUser = 65534 // as in the official image

// natsImage describes an image with the nats-server of the module that the tests use.
func natsImage(ctx context.Context) (image, error) {
	return image{
		programs: []string{"wget"},
		changes:  []string{`ENTRYPOINT ["/nats-server"]`, "ENV PATH=/usr/bin"},
		files: func(root string) error {
			build := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(root, "nats-server"), "github.com/nats-io/nats-server/v2")
			build.Env = append(os.Environ(), "CGO_ENABLED=0")
			out, err := build.CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w\n%s", err, out)
			}
			return nil
		},
	}, nil
}

// postgresEntryPoint is the entry point of the image. It does the part of the official entry point that compose.yaml needs.
const postgresEntryPoint = `#!/bin/sh
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

// postgresImage describes an image with the newest Postgres of this machine.
func postgresImage(context.Context) (image, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(found) == 0 {
		return image{}, fmt.Errorf("there is no Postgres in /usr/lib/postgresql; on Debian:\n%s", installCommand)
	}
	bin := found[len(found)-1]
	home := filepath.Dir(bin)
	i := image{
		programs: []string{"/bin/sh"},
		paths:    []string{home, "/usr/share/postgresql/" + filepath.Base(home), "/usr/lib/locale/C.utf8", "/usr/share/zoneinfo"},
		changes:  []string{"ENV PATH=" + bin + ":/bin", fmt.Sprintf("USER %d", postgresUser), `ENTRYPOINT ["/start"]`, `CMD ["postgres"]`},
		files: func(root string) error {
			data := filepath.Join(root, "var/lib/postgresql/data")
			return errors.Join(
				os.WriteFile(filepath.Join(root, "start"), []byte(postgresEntryPoint), 0o755),
				os.Mkdir(filepath.Join(root, "etc"), 0o755),
				os.WriteFile(filepath.Join(root, "etc/passwd"), fmt.Appendf(nil, "postgres:x:%d:%[1]d::/tmp:/bin/sh\n", postgresUser), 0o644),
				os.MkdirAll(data, 0o755), os.Chmod(data, 0o700), os.Chown(data, postgresUser, postgresUser),
			)
		},
	}
	for _, name := range []string{"postgres", "initdb", "pg_isready", "psql"} {
		i.programs = append(i.programs, filepath.Join(bin, name))
	}
	return i, nil
}
