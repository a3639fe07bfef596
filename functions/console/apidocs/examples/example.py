#!/usr/bin/env python3
"""Calls Sendonce with Python's standard library alone.

SENDONCE_URL, SENDONCE_USER and SENDONCE_PASSWORD name the server and the caller.
"""
# --- setup
import base64, hmac, json, os, time, urllib.error, urllib.request, uuid

URL = os.environ.get("SENDONCE_URL", "http://127.0.0.1:8000")
USER = os.environ.get("SENDONCE_USER", "admin")
PASSWORD = os.environ["SENDONCE_PASSWORD"]
HEADERS = {
    "Authorization": "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode(),
    "Content-Type": "application/json",
}


def call(method, path, body=None):
    """Makes a call and returns the data of the response. A refusal is raised with its text."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, HEADERS, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            text = response.read()
            return json.loads(text)["data"] if text else None
    except urllib.error.HTTPError as refused:
        raise RuntimeError(f"{method} {path}: {refused.read().decode()}") from None


# --- send
order = "order-" + uuid.uuid4().hex  # the id of your order, which this SMS is about
sms = {"phone_number": "13800138000", "content": "Your code is 123456", "queue": "example-py", "idempotency_key": order}
task = call("POST", "/api/v1/sms/send", sms)
# If the response is lost, make the same call again: it returns the same task and creates no second one.
again = call("POST", "/api/v1/sms/send", sms)
print("submitted", task["task_id"], again["task_id"] == task["task_id"])

# --- by-key
found = call("GET", "/api/v1/sms/by-key/" + order)
print("found", found["task_id"], found["state"])

# --- claim
claim = {"app_id": "example-py", "queue": "example-py", "limit": 10, "wait": 5}
claimed = call("POST", "/api/v1/sms/tasks/pending", claim)  # yours alone until lease_until
print("claimed", len(claimed))

# --- report
for task in claimed:
    # Send task["content"] to task["phone_number"] here. After a failure: "status": 3, "should_retry": True.
    report = {"task_id": task["task_id"], "app_id": "example-py", "claim_id": task["claim_id"], "status": 2}
    print("reported", call("POST", "/api/v1/sms/report", report)["state"])

# --- endpoint
endpoint = {"url": "https://shop.example.com/sendonce", "events": ["task.succeeded", "task.failed"]}
registered = call("POST", "/api/v1/webhooks/endpoints", endpoint)
secret = registered["secret"]  # shown once: keep it to verify the webhooks
print("registered", registered["id"])


# --- verify
def verify(headers, body, secret):
    """Returns whether Sendonce sent these bytes. Then handle each webhook-id once, and respond with 2xx."""
    try:
        recent = abs(time.time() - int(headers["webhook-timestamp"])) <= 300
    except ValueError:
        return False
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    want = b"v1," + base64.b64encode(hmac.digest(key, signed, "sha256"))
    given = headers["webhook-signature"].encode().split()
    return recent and any(hmac.compare_digest(want, signature) for signature in given)


# --- message
message = {"client_msg_id": uuid.uuid4().hex, "to": "user:" + USER, "type": "text", "data": {"text": "hello"}}
ack = call("POST", "/api/v1/messages", message)  # the same call again, with this client_msg_id, creates no second message
print("message", ack["server_msg_id"], ack["ack"])


# --- stream
def stream(user, after=0):
    """Yields the id, the kind and the data of each event. When the stream ends, call this again with the last id."""
    request = urllib.request.Request(f"{URL}/api/v1/stream/{user}", headers=HEADERS | {"Last-Event-ID": str(after)})
    event = {}
    with urllib.request.urlopen(request, timeout=60) as lines:
        for line in lines:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name in ("id", "event", "data"):
                event[name] = value
            elif not line.strip() and event:
                if "data" in event:
                    yield event["id"], event["event"], json.loads(event["data"])
                event = {}


for _, kind, data in stream(USER):
    if kind == "message" and data["id"] == ack["server_msg_id"]:
        print("received", data["data"]["text"])
        break

# --- end
call("DELETE", "/api/v1/webhooks/endpoints/" + registered["id"])
if "WEBHOOK_SECRET" in os.environ:
    given = {name: os.environ[name.upper().replace("-", "_")] for name in ("webhook-id", "webhook-timestamp", "webhook-signature")}
    body = os.environ["WEBHOOK_BODY"].encode()
    print("verified", verify(given, body, os.environ["WEBHOOK_SECRET"]), verify(given, body + b" ", os.environ["WEBHOOK_SECRET"]))
