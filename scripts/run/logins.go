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
// only migrate gets in addition. The first run generates the secrets that are not set.
func (s settings) processEnv(databaseURL, natsURL string) (env, owner []string, err error) {
	env = s.serverEnv(databaseURL, natsURL)
	if !s.hasSecret(encryptionKeys) {
		file, err := secretFile(s.home, "encryption_keys", newEncryptionKey)
		if err != nil {
			return nil, nil, err
		}
		env = append(env, encryptionKeys+"_FILE="+file)
	}
	if env, owner, err = s.logins(env, databaseURL); err != nil {
		return nil, nil, err
	}
	env, err = s.withTriggerCaller(env)
	return env, owner, err
}

// logins returns the environment of the server, and the variables that only migrate gets in addition. The
// server logs in to Postgres as roles whose passwords the first run generates. With an empty
// SENDONCE_HOT_ROLE the server logs in with ownerURL.
func (s settings) logins(env []string, ownerURL string) (server, owner []string, err error) {
	if role, set := s.all["SENDONCE_HOT_ROLE"]; set && role == "" {
		return env, nil, nil
	}
	for _, name := range []string{"hot", "read", "admin", "retention"} {
		setting := "SENDONCE_" + strings.ToUpper(name) + "_PASSWORD"
		if s.hasSecret(setting) {
			continue
		}
		file, err := secretFile(s.home, name+"_password", rand.Text)
		if err != nil {
			return nil, nil, err
		}
		env = append(env, setting+"_FILE="+file)
	}
	u, err := url.Parse(ownerURL)
	if err != nil {
		return nil, nil, errors.New("DATABASE_URL is not a postgres:// URL")
	}
	u.User = nil
	env = slices.DeleteFunc(env, func(pair string) bool { return strings.HasPrefix(pair, "DATABASE_URL=") })
	return append(env, "DATABASE_URL="+u.String()), []string{"SENDONCE_OWNER_URL=" + ownerURL}, nil
}

// withTriggerCaller returns env with the user name and the password of the trigger, which the first run
// generates. migrate creates this caller of the API, with the only role trigger.
func (s settings) withTriggerCaller(env []string) ([]string, error) {
	env = append(env, "SENDONCE_TRIGGER_USER="+cmp.Or(s.all["SENDONCE_TRIGGER_USER"], "sendonce-trigger"))
	const password = "SENDONCE_TRIGGER_PASSWORD"
	if s.hasSecret(password) {
		return env, nil
	}
	file, err := secretFile(s.home, "trigger_password", rand.Text)
	return append(env, password+"_FILE="+file), err
}

// withoutBasicAuthPassword returns env without the password of the built-in admin of the API.
func withoutBasicAuthPassword(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(pair string) bool {
		return strings.HasPrefix(pair, "BASIC_AUTH_PASSWORD")
	})
}
