package store

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

const (
	encryptionKeyBytes = 32      // AES-256
	encryptedPrefix    = "enc2." // check constraints of the tables refuse values without it
)

// ErrDecrypt means that a stored secret cannot be decrypted: its key is not configured, or somebody
// without the key has changed the row.
var ErrDecrypt = errors.New("a stored secret cannot be decrypted")

// Keys encrypt secrets that must be read back: signing secrets of webhooks and access tokens of providers in the database, and
// session cookies and stream tokens outside it. Encrypt uses the first key. Decrypt uses the key whose id is in the value. The zero
// Keys can neither encrypt nor decrypt.
//
// An encrypted value is enc2.<key id>.<base64 of nonce and ciphertext>, AES-256 in
// GCM with a random nonce (NIST SP 800-38D). The key id is the first 4 bytes of the
// key's SHA-256, in hex. The argument row is additional authenticated data: for a value in the database the table and
// id of its row. Other data, such as the caller of the row, may follow after
// a space. So Decrypt refuses a value that was copied to another row, or whose row was given
// to another caller.
type Keys struct {
	ids  []string // newest first
	aead map[string]cipher.AEAD
}

// ParseKeys reads keys of 32 bytes in base64, separated by commas, the newest first. An
// empty text gives the zero Keys. The text of an error does not contain keys.
func ParseKeys(text string) (Keys, error) {
	if strings.TrimSpace(text) == "" {
		return Keys{}, nil
	}
	k := Keys{aead: map[string]cipher.AEAD{}}
	for i, part := range strings.Split(text, ",") {
		key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(part))
		if err != nil || len(key) != encryptionKeyBytes {
			return Keys{}, fmt.Errorf("key %d must be the base64 of 32 random bytes, as `openssl rand -base64 32` prints it; several are separated by commas, the newest first", i+1)
		}
		sum := sha256.Sum256(key)
		id := hex.EncodeToString(sum[:4])
		if k.aead[id] != nil {
			return Keys{}, fmt.Errorf("key %d is given twice", i+1)
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return Keys{}, err
		}
		if k.aead[id], err = cipher.NewGCMWithRandomNonce(block); err != nil {
			return Keys{}, err
		}
		k.ids = append(k.ids, id)
	}
	return k, nil
}

// RowID returns only the table and id of the argument row of Encrypt.
func RowID(row string) string {
	id, _, _ := strings.Cut(row, " ")
	return id
}

// Encrypt encrypts a secret with the first key. Decrypt needs the same argument row.
func (k Keys) Encrypt(row, secret string) (string, error) {
	if len(k.ids) == 0 {
		return "", errors.New("no encryption key is set, so no secret can be stored")
	}
	sealed := k.aead[k.ids[0]].Seal(nil, nil, []byte(secret), []byte(row))
	return k.NewestPrefix() + base64.RawStdEncoding.EncodeToString(sealed), nil
}

// IsEmpty reports whether no key is set.
func (k Keys) IsEmpty() bool { return len(k.ids) == 0 }

// NewestPrefix returns the prefix of all values that the first key has encrypted. It panics if no key is set.
func (k Keys) NewestPrefix() string { return encryptedPrefix + k.ids[0] + "." }

// Decrypt reverses Encrypt. Its errors are ErrDecrypt.
func (k Keys) Decrypt(row, stored string) (string, error) {
	rest, encrypted := strings.CutPrefix(stored, encryptedPrefix)
	if !encrypted {
		return "", fmt.Errorf("%w: it is not encrypted", ErrDecrypt)
	}
	id, text, _ := strings.Cut(rest, ".")
	aead := k.aead[id]
	if aead == nil {
		return "", fmt.Errorf("%w: its key %.8q is not among the %d keys that are set", ErrDecrypt, id, len(k.ids))
	}
	sealed, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil {
		return "", fmt.Errorf("%w: it is damaged", ErrDecrypt)
	}
	secret, err := aead.Open(nil, nil, sealed, []byte(row))
	if err != nil {
		return "", fmt.Errorf("%w: it is damaged, or was copied from another row", ErrDecrypt)
	}
	return string(secret), nil
}
