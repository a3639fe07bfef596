#!/bin/sh
# Calls Sendonce with curl. SENDONCE_URL, SENDONCE_USER and SENDONCE_PASSWORD name the server and the caller.
set -eu
# --- setup
URL=${SENDONCE_URL:-http://127.0.0.1:8000}
USER=${SENDONCE_USER:-admin}
# The password comes from standard input, as every user of the machine can see arguments.
call() { printf 'user = "%s:%s"' "$USER" "$SENDONCE_PASSWORD" | curl -sS --config - -H 'Content-Type: application/json' "$@"; }
# --- send
order=order-$(date +%s)-$$ # the id of your order, which this SMS is about
call "$URL/api/v1/sms/send" -d '{"phone_number": "13800138000", "content": "Your code is 123456",
  "queue": "example-sh", "idempotency_key": "'"$order"'"}'
# --- by-key
call "$URL/api/v1/sms/by-key/$order"
# --- claim
claimed=$(call "$URL/api/v1/sms/tasks/pending" -d '{"app_id": "example-sh", "queue": "example-sh", "limit": 1, "wait": 5}')
task=$(echo "$claimed" | sed -n 's/.*"task_id":"\([^"]*\)".*/\1/p')
claim=$(echo "$claimed" | sed -n 's/.*"claim_id":"\([^"]*\)".*/\1/p')
# --- report
call "$URL/api/v1/sms/report" -d '{"task_id": "'"$task"'", "app_id": "example-sh", "claim_id": "'"$claim"'", "status": 2}'
# --- endpoint
registered=$(call "$URL/api/v1/webhooks/endpoints" -d '{"url": "https://shop.example.com/sendonce", "events": ["task.succeeded", "task.failed"]}')
echo "$registered" # its secret is shown once: keep it to verify the webhooks
# --- verify
verify() { # id, timestamp, signatures, secret; the body, as received, on standard input
  key=$(printf %s "${4#whsec_}" | base64 -d | od -An -v -tx1 | tr -d ' \n')
  want=v1,$({ printf '%s.%s.' "$1" "$2"; cat; } | openssl dgst -sha256 -mac HMAC -macopt "hexkey:$key" -binary | base64)
  case " $3 " in *" $want "*) age=$(($(date +%s) - $2)); [ "${age#-}" -le 300 ] ;; *) false ;; esac
}
# --- message
call "$URL/api/v1/messages" -d '{"client_msg_id": "'"$order"'", "to": "user:'"$USER"'", "type": "text", "data": {"text": "hello"}}'
# --- stream
call -N --max-time 5 "$URL/api/v1/stream/$USER?after=0" || true # also without --max-time a stream ends: reconnect with the last id
# --- end
endpoint=$(echo "$registered" | sed -n 's/.*"id":"\([^"]*\)".*/\1/p')
call -X DELETE "$URL/api/v1/webhooks/endpoints/$endpoint"
if [ -n "${WEBHOOK_SECRET:-}" ]; then
  printf %s "$WEBHOOK_BODY" | verify "$WEBHOOK_ID" "$WEBHOOK_TIMESTAMP" "$WEBHOOK_SIGNATURE" "$WEBHOOK_SECRET" && echo verified True
  printf '%s ' "$WEBHOOK_BODY" | verify "$WEBHOOK_ID" "$WEBHOOK_TIMESTAMP" "$WEBHOOK_SIGNATURE" "$WEBHOOK_SECRET" || echo and not when changed
fi
