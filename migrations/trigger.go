package migrations

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// minTriggerPasswordLength makes a random password so long that nobody can guess it from its
// unsalted SHA-256 in the table callers.
const minTriggerPasswordLength = 24

const (
	addTriggerSQL = `
INSERT INTO callers (name, token_hash, roles, queues) VALUES ($1, $2, '{trigger}', '{}')
ON CONFLICT (name) DO NOTHING RETURNING id`
	lockTriggerSQL   = `SELECT id, roles, revoked_at IS NOT NULL, token_hash = $2 FROM callers WHERE name = $1 FOR UPDATE`
	rotateTriggerSQL = `UPDATE callers SET token_hash = $2, rotated_at = now(), revoked_at = NULL WHERE id = $1`
	logTriggerSQL    = `
INSERT INTO operator_actions (caller_id, caller_name, request_id, action, subject, after)
VALUES (0, 'migrate', 'migrate', $2, 'caller/' || $1::bigint, jsonb_build_object('name', $3::text, 'roles', jsonb_build_array('trigger')))`
)

// EnsureTriggerCaller creates the caller that the trigger logs in as, with the role trigger
// only, or sets the password of this caller. The password must have at least 24 characters,
// which should be random. The result is the action that it recorded in operator_actions:
// caller.create, caller.rotate, or "" if the caller had this password already. A new password
// makes a revoked caller valid again. EnsureTriggerCaller returns an error if the caller is
// revoked and has this password, or if the caller has other roles and another password.
func EnsureTriggerCaller(ctx context.Context, conn *pgx.Conn, name, password string) (action string, err error) {
	if len(password) < minTriggerPasswordLength {
		return "", fmt.Errorf("SENDONCE_TRIGGER_PASSWORD must be at least %d random characters, such as openssl rand -hex 24 prints", minTriggerPasswordLength)
	}
	hash := sha256.Sum256([]byte(password))
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		var id int64
		action = "caller.create"
		err := tx.QueryRow(ctx, addTriggerSQL, name, hash[:]).Scan(&id)
		if errors.Is(err, pgx.ErrNoRows) {
			var roles []string
			var revoked, samePassword bool
			if err := tx.QueryRow(ctx, lockTriggerSQL, name, hash[:]).Scan(&id, &roles, &revoked, &samePassword); err != nil {
				return err
			}
			switch {
			case samePassword && !revoked:
				action = ""
				return nil
			case samePassword:
				return errors.New("it was revoked: set SENDONCE_TRIGGER_PASSWORD to another password")
			case !slices.Equal(roles, []string{"trigger"}):
				return errors.New("there is a caller of this name with other roles than trigger: set SENDONCE_TRIGGER_USER to another name")
			}
			action = "caller.rotate"
			_, err = tx.Exec(ctx, rotateTriggerSQL, id, hash[:])
		}
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, logTriggerSQL, id, action, name)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("caller %s of the trigger: %w", name, err)
	}
	return action, nil
}
