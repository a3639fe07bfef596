package migrations

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
)

const (
	scramIterations = 4096 // the server's own default
	scramSaltBytes  = 16
)

// ScramSecret is the form in which Postgres stores a password (RFC 5803). Sent instead of
// the password, it keeps that out of the server's log. Each login of a client repeats
// the iterations.
func ScramSecret(password string, iterations int) (string, error) {
	if strings.ContainsFunc(password, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return "", errors.New("must be of printable ASCII characters without spaces")
	}
	salt := make([]byte, scramSaltBytes)
	rand.Read(salt) // never fails
	salted, err := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	if err != nil {
		return "", err
	}
	storedKey := sha256.Sum256(keyed(salted, "Client Key"))
	text := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", iterations, text(salt), text(storedKey[:]), text(keyed(salted, "Server Key"))), nil
}

func keyed(key []byte, text string) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}
