// Calls Sendonce with openapi-fetch and the types that openapi-typescript generates from openapi.yaml.
// SENDONCE_URL, SENDONCE_USER and SENDONCE_PASSWORD name the server and the caller.
// --- setup
// npx openapi-typescript http://127.0.0.1:8000/openapi.yaml -o api.d.ts; npm install openapi-fetch
import createClient from "openapi-fetch";
import type { components, paths } from "./api.js";

declare const process: { env: Record<string, string | undefined> };
const { SENDONCE_URL = "http://127.0.0.1:8000", SENDONCE_USER = "admin", SENDONCE_PASSWORD = "" } = process.env;
const headers = { Authorization: "Basic " + btoa(`${SENDONCE_USER}:${SENDONCE_PASSWORD}`) };
const client = createClient<paths>({ baseUrl: SENDONCE_URL, headers });

// dataOf returns the data of a response, or throws its error with every invalid field.
function dataOf<T>(response: { data?: { data: T }; error?: components["schemas"]["Error"] }): T {
  if (response.data === undefined) throw new Error(JSON.stringify(response.error));
  return response.data.data;
}

// --- send
const order = "order-" + crypto.randomUUID(); // the id of your order, which this SMS is about
const sms = { phone_number: "13800138000", content: "Your code is 123456", queue: "example-ts", idempotency_key: order };
const task = dataOf(await client.POST("/api/v1/sms/send", { body: sms }));
// If the response is lost, make the same call again: it returns the same task and creates no second one.
const again = dataOf(await client.POST("/api/v1/sms/send", { body: sms }));
console.log("submitted", task.task_id, again.task_id === task.task_id);

// --- by-key
const found = dataOf(await client.GET("/api/v1/sms/by-key/{key}", { params: { path: { key: order } } }));
console.log("found", found.task_id, found.state);

// --- claim
const claim = { app_id: "example-ts", queue: "example-ts", limit: 10, wait: 5 };
const claimed = dataOf(await client.POST("/api/v1/sms/tasks/pending", { body: claim })); // yours alone until lease_until
console.log("claimed", claimed.length);

// --- report
for (const { task_id, claim_id, phone_number, content } of claimed) {
  console.log("send", content, "to", phone_number); // after a failure: status 3, should_retry: true
  const report = { task_id, app_id: "example-ts", claim_id, status: 2 as const };
  console.log("reported", dataOf(await client.POST("/api/v1/sms/report", { body: report })).state);
}

// --- endpoint
const endpoint = dataOf(await client.POST("/api/v1/webhooks/endpoints", {
  body: { url: "https://shop.example.com/sendonce", events: ["task.succeeded", "task.failed"] },
}));
console.log("registered", endpoint.id); // its secret is shown once: keep it to verify the webhooks

// --- verify
// verify reports whether Sendonce sent this body, as received. Then handle each webhook-id once, and respond with 2xx.
async function verify(headers: Headers, body: string, secret: string): Promise<boolean> {
  const bytes = (base64: string) => Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const [id, timestamp] = [headers.get("webhook-id"), headers.get("webhook-timestamp")];
  if (!(Math.abs(Date.now() / 1000 - Number(timestamp)) <= 300)) return false;
  const algorithm = { name: "HMAC", hash: "SHA-256" };
  const key = await crypto.subtle.importKey("raw", bytes(secret.replace("whsec_", "")), algorithm, false, ["verify"]);
  const signed = new TextEncoder().encode(`${id}.${timestamp}.${body}`);
  for (const given of (headers.get("webhook-signature") ?? "").split(" ")) {
    if (given.startsWith("v1,") && (await crypto.subtle.verify("HMAC", key, bytes(given.slice(3)), signed))) return true;
  }
  return false;
}

// --- message
const ack = dataOf(await client.POST("/api/v1/messages", {
  body: { client_msg_id: order, to: "user:" + SENDONCE_USER, type: "text", data: { text: "hello" } },
})); // the same call again, with this client_msg_id, creates no second message
console.log("message", ack.server_msg_id, ack.ack);

// --- stream
const stream = await fetch(`${SENDONCE_URL}/api/v1/stream/${SENDONCE_USER}`, { headers: { ...headers, "Last-Event-ID": "0" } });
let text = "";
const reader = stream.body!.pipeThrough(new TextDecoderStream()).getReader();
while (!text.includes(ack.server_msg_id)) { // each event ends with an empty line; when the stream ends, reconnect with the last id
  const { value, done } = await reader.read();
  if (done) break;
  text += value;
}
await reader.cancel();
console.log("received", text.includes(ack.server_msg_id));

// --- end
const recorded = dataOf(await client.POST("/api/v1/subscribe/record", {
  body: {
    template_id: "tpl-1", template_type: "BOOKING_CONFIRM", business_type: "course_booking",
    business_id: Date.now(), receiver_user_id: 7, receiver_openid: "openid-7",
    message_data: { thing1: { value: "Tea" }, number2: { value: 2 } }, app_id: "example-ts",
  },
}));
console.log("recorded", recorded.id, recorded.send_status);
await client.DELETE("/api/v1/webhooks/endpoints/{id}", { params: { path: { id: endpoint.id } } });
const { WEBHOOK_ID = "", WEBHOOK_TIMESTAMP = "", WEBHOOK_SIGNATURE = "", WEBHOOK_BODY = "", WEBHOOK_SECRET } = process.env;
if (WEBHOOK_SECRET !== undefined) {
  const given = new Headers({ "webhook-id": WEBHOOK_ID, "webhook-timestamp": WEBHOOK_TIMESTAMP, "webhook-signature": WEBHOOK_SIGNATURE });
  console.log("verified", await verify(given, WEBHOOK_BODY, WEBHOOK_SECRET), await verify(given, WEBHOOK_BODY + " ", WEBHOOK_SECRET));
}
