// Drives the official OpenAI and Anthropic SDKs for Node against one base URL and prints what
// they returned, one JSON line per case.
import { createRequire } from "node:module";
// With "broken" as the third argument it reads one stream of each kind that breaks off, and prints how.
const [modules, base, mode] = process.argv.slice(2);
const require = createRequire(modules + "/");
const OpenAI = require("openai");
const Anthropic = require("@anthropic-ai/sdk");
const client = new (OpenAI.default ?? OpenAI)({ baseURL: base + "/v1", apiKey: "none", maxRetries: 0, timeout: 30000 });
const claude = new (Anthropic.default ?? Anthropic)({ baseURL: base, apiKey: "none", maxRetries: 0, timeout: 30000 });
const model = "sim";
const messages = [{ role: "system", content: "be kind" }, { role: "user", content: "Grüße, 世界 🌍! Tell me a story." }];
const tools = [{ type: "function", function: { name: "weather", description: "the weather", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } } }];

// What differs from answer to answer by its nature, and what the cache decides.
const own = new Set(["id", "created", "created_at", "completed_at", "system_fingerprint", "prompt_tokens_details", "cached_tokens", "input_tokens_details", "cache_read_input_tokens", "_request_id", "request_id", "call_id", "item_id", "msg_id"]);
const plain = (v) => JSON.parse(JSON.stringify(v, (k, x) => (own.has(k) ? undefined : x)));

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(plain(chunk));
  return joined(chunks);
}
// joined puts the pieces of a stream together: how tokens are grouped into chunks is the
// engine's affair of the moment, what they say is not.
function joined(chunks) {
  const out = { choices: {}, events: [], text: "", heads: new Set() };
  for (const c of chunks) {
    for (const x of c.choices ?? []) {
      const at = (out.choices[x.index] ??= { text: "", tools: {}, roles: [], finish: [] });
      at.text += x.delta?.content ?? x.text ?? "";
      for (const t of x.delta?.tool_calls ?? []) {
        const call = (at.tools[t.index] ??= { name: "", args: "" });
        call.name += t.function?.name ?? "";
        call.args += t.function?.arguments ?? "";
      }
      if (x.delta?.role) at.roles.push(x.delta.role);
      if (x.finish_reason) at.finish.push([x.finish_reason, x.stop_reason ?? null]);
    }
    if (c.usage && c.choices) out.usage = c.usage;
    out.heads.add([c.object, c.model].join());
    if (c.type && c.type !== out.events.at(-1)) out.events.push(c.type);
    out.text += typeof c.delta === "string" ? c.delta : (c.delta?.text ?? "");
    if (c.delta?.stop_reason) out.stop = c.delta.stop_reason;
  }
  return { ...out, heads: [...out.heads] };
}
async function failure(promise) {
  try {
    return { unexpected: plain(await promise) };
  } catch (e) {
    return { class: e.constructor.name, status: e.status, message: e.error?.message ?? e.message, type: e.error?.type, code: e.error?.code, param: e.error?.param };
  }
}

const cases = {
  chat: async () => plain(await client.chat.completions.create({ model, messages, max_tokens: 12, temperature: 0, seed: 1 })),
  "chat stream": async () => collect(await client.chat.completions.create({ model, messages, max_tokens: 12, temperature: 0, seed: 1, stream: true })),
  "chat stream with usage": async () => collect(await client.chat.completions.create({ model, messages, max_tokens: 5, temperature: 0, seed: 1, stream: true, stream_options: { include_usage: true } })),
  "several choices": async () => plain(await client.chat.completions.create({ model, messages, max_tokens: 6, n: 3, temperature: 0, seed: 1 })),
  "several choices, streamed": async () => collect(await client.chat.completions.create({ model, messages, max_tokens: 6, n: 3, temperature: 0, seed: 1, stream: true })),
  logprobs: async () => plain(await client.chat.completions.create({ model, messages, max_tokens: 4, logprobs: true, top_logprobs: 2, temperature: 0, seed: 1 })),
  tools: async () => plain(await client.chat.completions.create({ model, messages, tools, tool_choice: "required", max_tokens: 40, temperature: 0, seed: 1 })),
  "tools, streamed": async () => collect(await client.chat.completions.create({ model, messages, tools, tool_choice: "required", max_tokens: 40, temperature: 0, seed: 1, stream: true })),
  // How many tokens were made before the stop was noticed depends on the moment.
  stop: async () => plain((await client.chat.completions.create({ model, messages, max_tokens: 20, stop: ["e"], temperature: 0, seed: 1 })).choices),
  completion: async () => plain(await client.completions.create({ model, prompt: "Once upon a time", max_tokens: 8, temperature: 0, seed: 1 })),
  "completion of ids": async () => plain(await client.completions.create({ model, prompt: [1, 2, 3, 4], max_tokens: 8, temperature: 0, seed: 1 })),
  "completion of a batch": async () => plain(await client.completions.create({ model, prompt: ["one", "two"], max_tokens: 4, temperature: 0, seed: 1 })),
  "completion stream": async () => collect(await client.completions.create({ model, prompt: "Once 🌍", max_tokens: 8, temperature: 0, seed: 1, stream: true })),
  "long body": async () => plain((await client.chat.completions.create({ model, messages: [{ role: "user", content: "wörter ".repeat(20000) }], max_tokens: 3, temperature: 0, seed: 1 })).usage),
  models: async () => (await client.models.list()).data.map((m) => m.id).sort(),
  "unknown model": async () => failure(client.chat.completions.create({ model: "nobody", messages, max_tokens: 3 })).then((f) => ({ class: f.class, status: f.status })),
  "refused by the engine": async () => failure(client.chat.completions.create({ model, messages, max_tokens: -1 })),
  "too long": async () => failure(client.completions.create({ model, prompt: "word ".repeat(140000), max_tokens: 3 })),
  abort: async () => {
    const stream = await client.chat.completions.create({ model, messages, max_tokens: 2000, stream: true });
    let n = 0;
    for await (const _ of stream) if (++n === 3) break;
    return n;
  },
  "a response": async () => failure(client.responses.create({ model, input: "hello", max_output_tokens: 6, temperature: 0 })).then((f) => f.unexpected?.output ?? f),
  "an Anthropic message": async () => failure(claude.messages.create({ model, max_tokens: 8, messages: [{ role: "user", content: "hello 🌍" }] })).then((f) => ({ ...f, unexpected: { ...f.unexpected, usage: f.unexpected?.usage?.output_tokens } })),
  "an Anthropic stream": async () => failure(claude.messages.create({ model, max_tokens: 8, stream: true, messages: [{ role: "user", content: "hello" }] }).then(collect)),
  "a response, streamed": async () => collect(await client.responses.create({ model, input: "hello", max_output_tokens: 6, temperature: 0, stream: true })),
  embeddings: async () => failure(client.embeddings.create({ model, input: ["one", "two"], encoding_format: "float" })).then((f) => f.unexpected?.data?.map((d) => [d.index, d.embedding.length]) ?? f),
  "count of tokens": async () => failure(claude.messages.countTokens({ model, messages: [{ role: "user", content: "hello 🌍" }] })),
  "an Anthropic error": async () => failure(claude.messages.create({ model, max_tokens: -1, messages: [{ role: "user", content: "hello" }] })).then((f) => ({ class: f.class, status: f.status })),
};
// What a program sees of a stream whose replica dies in the middle of it.
async function broken(promise) {
  let events = 0;
  try {
    for await (const _ of await promise) events++;
    return { class: "none" };
  } catch (e) {
    return { class: e.constructor.name, said: /ended early/.test(e.message + JSON.stringify(e.error ?? null)), some: events > 0 };
  }
}
const streams = {
  chat: () => broken(client.chat.completions.create({ model, messages, max_tokens: 1000, stream: true })),
  completion: () => broken(client.completions.create({ model, prompt: "Once upon a time", max_tokens: 1000, ignore_eos: true, stream: true })),
  response: () => broken(client.responses.create({ model, input: "hello", max_output_tokens: 1000, stream: true })),
  message: () => broken(claude.messages.create({ model, max_tokens: 100, stream: true, messages })),
};
for (const [name, run] of Object.entries(mode === "broken" ? streams : cases)) {
  let result;
  try {
    result = await run();
  } catch (e) {
    result = { failed: String(e) };
  }
  console.log(JSON.stringify({ case: name, result }));
}
