package main

import (
	"cmp"
	"crypto/rand"
	"errors"
	"net/url"
	"slices"
	"strings"
)

// processEnv returns the environment of the server and the trigger, and the variables that
// only migrate gets in addition. The first run generates the secrets that are not set. migrate
// creates the caller as which the trigger calls the API. The only role of this caller is trigger.
func (s settings) processEnv(databaseURL, natsURL string) (env, owner []string, err error) {
	env, err = s.withSecret(s.serverEnv(databaseURL, natsURL), "SENDONCE_ENCRYPTION_KEYS", "encryption_keys", newEncryptionKey)
	if err != nil {
		return nil, nil, err
	}
	if env, owner, err = s.logins(env, databaseURL); err != nil {
		return nil, nil, err
	}
	env = append(env, "SENDONCE_TRIGGER_USER="+cmp.Or(s.all["SENDONCE_TRIGGER_USER"], "sendonce-trigger"))
	env, err = s.withSecret(env, "SENDONCE_TRIGGER_PASSWORD", "trigger_password", rand.Text)
	return env, owner, err
}

// withSecret returns env with the file of a secret. If the secret is set, it returns env.
func (s settings) withSecret(env []string, setting, name string, generate func() string) ([]string, error) {
	if s.all[setting] != "" || s.all[setting+"_FILE"] != "" {
		return env, nil
	}
	file, err := secretFile(s.home, name, generate)
	return append(env, setting+"_FILE="+file), err
}

// logins returns the environment of the server, and the variables that only migrate gets in addition. The
// server logs in to Postgres as roles whose passwords the first run generates. With an empty
// SENDONCE_HOT_ROLE the server logs in with ownerURL.
func (s settings) logins(env []string, ownerURL string) (server, owner []string, err error) {
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
