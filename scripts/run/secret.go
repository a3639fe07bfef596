package main

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

const encryptionKeys = "SENDONCE_ENCRYPTION_KEYS"

func newEncryptionKey() string {
	key := make([]byte, 32)
	rand.Read(key) // never fails
	return base64.StdEncoding.EncodeToString(key)
}

// secretFile gives the path of the file home/secrets/name, which only its owner
// may read. The first run writes there what fresh returns; later runs keep it. It
// is there whole or not at all.
func secretFile(home, name string, fresh func() string) (string, error) {
	dir := filepath.Join(home, "secrets")
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	file, err := os.CreateTemp(dir, name+".*") // with mode 0600
	if err != nil {
		return "", err
	}
	_, err = file.WriteString(fresh())
	if err = errors.Join(err, file.Close()); err != nil {
		return "", errors.Join(err, os.Remove(file.Name()))
	}
	return path, os.Rename(file.Name(), path)
}
