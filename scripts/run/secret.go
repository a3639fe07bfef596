package main

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sendonce/sendonce/functions"
	"github.com/sendonce/sendonce/shared/command"
)

func newEncryptionKey() string {
	key := make([]byte, 32)
	rand.Read(key) // never fails
	return base64.StdEncoding.EncodeToString(key)
}

// secretFile returns the path of home/secrets/name. If the file does not exist, secretFile writes the result of generate
// to it, so that only its owner may read it.
func secretFile(home, name string, generate func() string) (string, error) {
	path := filepath.Join(home, "secrets", name)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	return writeSecret(home, name, generate())
}

// writeSecret writes text to home/secrets/name and returns the path.
func writeSecret(home, name, text string) (string, error) {
	dir := filepath.Join(home, "secrets")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return writePrivate(dir, name, text)
}

// writePrivate atomically writes the file dir/name, which only its owner may read, and returns its path.
func writePrivate(dir, name, text string) (string, error) {
	path := filepath.Join(dir, name)
	file, err := os.CreateTemp(dir, name+".*") // with mode 0600
	if err != nil {
		return "", err
	}
	_, err = file.WriteString(text)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(file.Name()))
	}
	return path, nil
}

// netrcOf returns the text of a file for curl --netrc-file. A password in the arguments of curl would be visible to every
// user of this machine.
func netrcOf(user, password string) string {
	quoteIfNeeded := func(text string) string {
		if !strings.ContainsAny(text, " \t\"\\#") {
			return text // curl before 7.84 does not support quotes
		}
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
	}
	return fmt.Sprintf("machine %s login %s password %s\n", loopback, quoteIfNeeded(user), quoteIfNeeded(password))
}

// withPassword returns s with the admin's password: the value of BASIC_AUTH_PASSWORD, or else the text of the file that
// BASIC_AUTH_PASSWORD_FILE names, or else the text of home/secrets/basic_auth_password, which the first run generates.
func (s settings) withPassword() (settings, error) {
	if s.password != "" {
		return s, nil
	}
	var err error
	if file := s.all["BASIC_AUTH_PASSWORD_FILE"]; file != "" {
		s.passwordFile, err = filepath.Abs(file)
	} else {
		s.passwordFile, err = secretFile(s.home, "basic_auth_password", rand.Text)
	}
	if err != nil {
		return s, err
	}
	text, err := os.ReadFile(s.passwordFile)
	if err != nil {
		return s, err
	}
	s.password = strings.TrimRight(string(text), "\r\n")
	if s.password == "" || strings.ContainsAny(s.password, "\r\n") {
		return s, fmt.Errorf("%s must contain the password of %s, in one line", s.passwordFile, s.username)
	}
	return s, nil
}

// withOnlySecretsOf returns env without the secrets that none of the readers reads. A reader is a function or a command.
func withOnlySecretsOf(env []string, readers ...string) []string {
	readersOf := command.SecretReaders(functions.Commands(), functions.Catalogue()...)
	return slices.DeleteFunc(slices.Clone(env), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		secretReaders := readersOf[strings.TrimSuffix(name, "_FILE")] // empty: not a secret, or a secret that every reader reads
		return len(secretReaders) > 0 && !slices.ContainsFunc(readers, func(r string) bool { return slices.Contains(secretReaders, r) })
	})
}

// functionNames returns the name of every function.
func functionNames() []string {
	var names []string
	for _, f := range functions.Catalogue() {
		names = append(names, f.Name)
	}
	return names
}
