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

// ScramSecret returns a password in the form in which Postgres stores it (RFC 5803). This form
// is sent instead of the password, so that the server cannot log the password. A client
// computes all iterations again at each login.
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
	storedKey := sha256.Sum256(hmacSHA256(salted, "Client Key"))
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", iterations, encode(salt), encode(storedKey[:]), encode(hmacSHA256(salted, "Server Key"))), nil
}

func hmacSHA256(key []byte, text string) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}
