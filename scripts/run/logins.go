package main

import (
	"cmp"
	"crypto/rand"
	"errors"
	"net/url"
	"slices"
	"strings"
)

// processEnv returns the environment of the server, the trigger and migrate, and ownerEnv, which only migrate gets in
// addition: the login of the owner of the database. The first run generates the secrets that are not set. The trigger calls
// the API as the caller SENDONCE_TRIGGER_USER; migrate creates this caller, with the role trigger only.
func (s settings) processEnv(databaseURL, natsURL string) (env, ownerEnv []string, err error) {
	env, err = s.withSecret(s.serverEnv(databaseURL, natsURL), "SENDONCE_ENCRYPTION_KEYS", "encryption_keys", newEncryptionKey)
	if err != nil {
		return nil, nil, err
	}
	if env, ownerEnv, err = s.replaceOwnerLogin(env, databaseURL); err != nil {
		return nil, nil, err
	}
	env = append(env, "SENDONCE_TRIGGER_USER="+cmp.Or(s.all["SENDONCE_TRIGGER_USER"], "sendonce-trigger"))
	env, err = s.withSecret(env, "SENDONCE_TRIGGER_PASSWORD", "trigger_password", rand.Text)
	return env, ownerEnv, err
}

// withSecret returns env with the variable <setting>_FILE, the path of home/secrets/<name>; the first run generates this
// secret. If the user has set the secret, withSecret returns env unchanged.
func (s settings) withSecret(env []string, setting, name string, generate func() string) ([]string, error) {
	if s.all[setting] != "" || s.all[setting+"_FILE"] != "" {
		return env, nil
	}
	file, err := secretFile(s.home, name, generate)
	return append(env, setting+"_FILE="+file), err
}

// replaceOwnerLogin removes the login of the owner from DATABASE_URL in env, and adds the passwords of the database roles as
// which the server logs in; the first run generates these passwords. ownerEnv has the login of the owner, for migrate. If
// SENDONCE_HOT_ROLE is set and empty, the server logs in as the owner: env is returned unchanged, and ownerEnv is nil.
func (s settings) replaceOwnerLogin(env []string, ownerURL string) (serverEnv, ownerEnv []string, err error) {
	if role, set := s.all["SENDONCE_HOT_ROLE"]; set && role == "" {
		return env, nil, nil
	}
	for _, role := range []string{"hot", "read", "admin", "retention"} {
		if env, err = s.withSecret(env, "SENDONCE_"+strings.ToUpper(role)+"_PASSWORD", role+"_password", rand.Text); err != nil {
			return nil, nil, err
		}
	}
	u, err := url.Parse(ownerURL)
	if err != nil {
		return nil, nil, errors.New("DATABASE_URL is not a postgres:// URL")
	}
	u.User = nil
	env = slices.DeleteFunc(env, func(pair string) bool { return strings.HasPrefix(pair, "DATABASE_URL=") })
	return append(env, "DATABASE_URL="+u.String()), []string{"SENDONCE_OWNER_URL=" + ownerURL}, nil
}

// withoutBasicAuthPassword returns env without the password of the built-in admin of the API.
func withoutBasicAuthPassword(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(pair string) bool {
		return strings.HasPrefix(pair, "BASIC_AUTH_PASSWORD")
	})
}
