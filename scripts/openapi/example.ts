// A submitter, a sender app and a service that sends subscribe messages, with the client that openapi-typescript
// generates of openapi.yaml. It needs a server: SENDONCE_URL, SENDONCE_USER and SENDONCE_PASSWORD name it.
import createClient from "openapi-fetch";
import type { components, paths } from "./api.js";

declare const process: { env: Record<string, string | undefined> };
const { SENDONCE_URL = "http://127.0.0.1:8080", SENDONCE_USER = "admin", SENDONCE_PASSWORD = "" } = process.env;

const client = createClient<paths>({
  baseUrl: SENDONCE_URL,
  headers: { Authorization: "Basic " + btoa(`${SENDONCE_USER}:${SENDONCE_PASSWORD}`) },
});

// dataOf returns the data of an answer, or throws its error with every invalid field.
function dataOf<T>(answer: { data?: { data: T }; error?: components["schemas"]["Error"] }): T {
  if (answer.data === undefined) throw new Error(JSON.stringify(answer.error));
  return answer.data.data;
}

const queue = "openapi-example"; // its own, so that no other sender app takes the task
const app_id = "openapi-example";

const sent = dataOf(await client.POST("/api/v1/sms/send", {
  body: { phone_number: "13800138000", content: "hello", queue, metadata: { order: 4711, tags: ["a", "b"] } },
}));
console.log("submitted", sent.task_id, sent.state);

const tasks = dataOf(await client.GET("/api/v1/sms/tasks/pending", { params: { query: { app_id, queue } } }));
for (const { task_id, claim_id, phone_number, content } of tasks) {
  console.log("claimed", task_id, phone_number, content);
  const reported = dataOf(await client.POST("/api/v1/sms/report", { body: { task_id, app_id, claim_id, status: 2 } }));
  console.log("reported", task_id, reported.state);
}

const task = dataOf(await client.GET("/api/v1/sms/task/{task_id}", { params: { path: { task_id: sent.task_id } } }));
console.log("read", task.state, task.metadata?.["order"]);

const recorded = dataOf(await client.POST("/api/v1/subscribe/record", {
  body: {
    template_id: "tpl-1", template_type: "BOOKING_CONFIRM", business_type: "course_booking",
    business_id: Date.now(), receiver_user_id: 7, receiver_openid: "openid-7",
    message_data: { thing1: { value: "Tea" }, number2: { value: 2 } }, app_id,
  },
}));
console.log("recorded", recorded.id, recorded.send_status);
