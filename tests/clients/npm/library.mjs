// The npm client does everything that it can do with a library.
//
//     node library.mjs MODULES SERVER REGISTRY
//
// MODULES is the directory with `ollama` in its node_modules, SERVER the address of a server whose
// library has nothing but the built-in model, REGISTRY host and port of one that speaks plain HTTP.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

const [modules, server, registry] = process.argv.slice(2);
const { Ollama } = createRequire(`${modules}/`)("ollama");
const client = new Ollama({ host: server });
const question = [{ role: "user", content: "Why is the sky blue?" }];
const published = `${registry}/library/teacher:v1`;

async function step(what, carryOut) {
  await carryOut();
  console.log(`done: ${what}`);
}

async function names() {
  return (await client.list()).models.map((model) => model.name).sort();
}

async function all(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return parts;
}

const refusedWith = (status, message) => (error) =>
  error.status_code === status && error.message.includes(message);

await step("list", async () => assert.deepEqual(await names(), ["demo:latest"]));

await step("create, with progress", async () => {
  const parts = await all(
    await client.create({
      model: "teacher",
      from: "demo",
      system: "You are a teacher.",
      parameters: { temperature: 0, stop: ["###"] },
      license: "MIT",
      messages: [{ role: "user", content: "hi" }, { role: "assistant", content: "Hello!" }],
      stream: true,
    }),
  );
  assert.equal(parts.at(-1).status, "success");
});

await step("show", async () => {
  const shown = await client.show({ model: "teacher" });
  assert.equal(shown.system, "You are a teacher.");
  assert.equal(shown.license, "MIT");
  assert.match(shown.parameters, /stop +"?###"?/);
  assert.deepEqual(shown.messages.map((message) => message.role), ["user", "assistant"]);
  assert.equal(shown.details.family, "llama");
  assert.ok(shown.model_info["general.architecture"]);
  assert.ok(shown.capabilities.includes("completion"));
});

await step("chat", async () => {
  const answer = await client.chat({ model: "teacher", messages: question });
  assert.match(answer.message.content, /blue/i);
  const parts = await all(await client.chat({ model: "teacher", messages: question, stream: true }));
  assert.equal(parts.map((part) => part.message.content).join(""), answer.message.content);
});

await step("copy and push, with progress", async () => {
  assert.deepEqual(await client.copy({ source: "teacher", destination: published }), {
    status: "success",
  });
  const parts = await all(await client.push({ model: published, insecure: true, stream: true }));
  assert.ok(parts.some((part) => part.digest && part.total > 0));
  assert.equal(parts.at(-1).status, "success");
});

await step("delete", async () => {
  for (const model of ["teacher", published]) {
    assert.deepEqual(await client.delete({ model }), { status: "success" });
  }
  assert.deepEqual(await names(), ["demo:latest"]);
});

await step("pull, with progress", async () => {
  const parts = await all(await client.pull({ model: published, insecure: true, stream: true }));
  assert.equal(parts[0].status, "pulling manifest");
  assert.ok(parts.some((part) => part.digest && part.completed > 0 && part.completed === part.total));
  assert.deepEqual(parts.slice(-1), [{ status: "success" }]);
  assert.deepEqual(await names(), [published, "demo:latest"].sort());
});

await step("pull and push without streaming", async () => {
  assert.deepEqual(await client.pull({ model: published, insecure: true }), { status: "success" });
  assert.deepEqual(await client.push({ model: published, insecure: true }), { status: "success" });
});

await step("what was pulled answers", async () => {
  const answer = await client.chat({ model: published, messages: question });
  assert.match(answer.message.content, /blue/i);
});

await step("mistakes", async () => {
  const nothing = `${registry}/library/nothing:v1`;
  const missing = "pull model manifest: file does not exist";
  await assert.rejects(client.pull({ model: nothing, insecure: true }), refusedWith(404, missing));
  await assert.rejects(async () => {
    await all(await client.pull({ model: nothing, insecure: true, stream: true }));
  }, new RegExp(missing));
  await assert.rejects(client.delete({ model: "nobody" }), refusedWith(404, "model 'nobody' not found"));
  await assert.rejects(client.show({ model: "nobody" }), refusedWith(404, "not found"));
  await assert.rejects(client.create({ model: "m" }), refusedWith(400, "neither 'from' or 'files'"));
  await client.delete({ model: published });
});
