package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// RunShared runs a command such as go test, and returns the exit code of the command. It builds the packages with the
// import paths pkgs into the directory bin. The test packages that the command runs share these binaries and one
// Postgres: the server of DATABASE_URL, else a private one. With a private one they also share a data directory made by
// initdb, which each further private Postgres copies.
func RunShared(ctx context.Context, bin string, pkgs []string, command ...string) (code int, err error) {
	if err := Compile(ctx, bin+"/", pkgs...); err != nil {
		return 1, err
	}
	for _, pkg := range pkgs {
		if err := setTimeByContent(filepath.Join(bin, binaryName(pkg))); err != nil {
			return 1, err
		}
	}
	server, err := StartPostgres(ctx, Options{ManyConnections: true})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()

	run := exec.Command(command[0], command[1:]...)
	run.Stdin, run.Stdout, run.Stderr = os.Stdin, os.Stdout, os.Stderr
	run.Env = append(os.Environ(), binariesVariable+"="+bin)
	if server.private { // if DATABASE_URL is set, the tests read it themselves
		dir, dirErr := makeDataDir(ctx)
		if dirErr != nil {
			return 1, dirErr
		}
		defer func() { err = errors.Join(err, dir.close()) }()
		run.Env = append(run.Env, postgresVariable+"="+server.base, dataVariable+"="+dir.data())
	}
	var exit *exec.ExitError
	if err := run.Run(); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	} else if err != nil {
		return 1, err
	}
	return 0, nil
}

// setTimeByContent sets the modification time of a file to a time that depends only on the content. go build sets a new
// time even if the binary is unchanged, and go test does not use a cached result if the time of a file has changed.
func setTimeByContent(file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	at := time.Unix(int64(binary.BigEndian.Uint32(sum[:4])>>2), 0) // from 1970 to 2004
	return os.Chtimes(file, at, at)
}

// makeDataDir makes a data directory and starts no server. A copy of the directory takes 20 ms, while initdb takes a
// second of CPU time.
func makeDataDir(ctx context.Context) (*serverDir, error) {
	p, err := startPrivate(ctx, Options{}, func(ctx context.Context, p *Postgres) error {
		bin, err := findBinaries(ctx, 0) // of any version
		if err != nil {
			return err
		}
		return p.initialise(ctx, bin, false)
	})
	if err != nil {
		return nil, err
	}
	return p.dir, nil
}
