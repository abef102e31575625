// The client against a real router before simulated replicas, whose addresses are in the environment.
import assert from "node:assert/strict";
import { createServer } from "node:net";
import { after, afterEach, test } from "node:test";
import {
  AuthenticationError,
  Booking,
  type Choice,
  Client,
  Code,
  DeadlineError,
  End,
  InvalidRequestError,
  KvpilotError,
  NotFoundError,
  ReleaseReason,
  ReplicaError,
  TrackerClosedError,
  UnavailableError,
} from "kvpilot";
import { ReplicaState } from "kvpilot/v1";
import OpenAI from "openai";
import { chat, client, collect, env, eventually, inFlight, messages, outcome } from "./router.js";

after(() => client.close());

async function closedPort(): Promise<string> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as { port: number };
  await new Promise((resolve) => server.close(resolve));
  return `127.0.0.1:${port}`;
}

afterEach(() => eventually("a test left load behind", async () => (await inFlight()) === 0));

test("a choice is booked, reported and released", async () => {
  const choice = await client.choose({ model: "sim", messages, sessionId: "s", explain: true, returnTokenIds: true });
  assert(choice.booked && choice.url.startsWith("http://127.0.0.1:"));
  assert.equal(await inFlight(), 1);
  assert(choice.response.decision?.candidates.length && choice.response.tokenIds?.ids.length);
  await choice.run(async () => {
    await choice.prefillDone();
    await choice.progress(5);
    await choice.progress(5); // reports may be repeated
    await choice.renew();
    choice.outcome({ outputTokens: 7 });
  });
  await choice.release(ReleaseReason.FAILED); // only the first counts
  const done = await outcome({ decisionId: choice.response.decisionId });
  assert.equal(done.end, End.COMPLETED);
  assert.equal(done.outputTokens, 7);
});

test("run releases by how it ends", async () => {
  const failed = await client.choose({ model: "sim", text: "hello" });
  await assert.rejects(
    failed.run(() => Promise.reject(new Error("broken"))),
    /broken/,
  );
  assert.equal((await outcome({ decisionId: failed.response.decisionId })).end, End.FAILED);
  const left = await client.choose({ model: "sim", text: "hello" });
  await assert.rejects(left.run(async () => AbortSignal.abort().throwIfAborted()));
  assert.equal((await outcome({ decisionId: left.response.decisionId })).end, End.CANCELED);
});

test("a dry run books nothing", async () => {
  const choice = await client.choose({ model: "sim", tokenIds: [1, 2, 3], booking: Booking.DRY_RUN });
  assert(!choice.booked);
  assert.equal(await inFlight(), 0);
  await choice.prefillDone();
  await choice.release(ReleaseReason.COMPLETED);
});

test("candidates, policy and adapter", async () => {
  const first = await client.choose({ model: "sim", text: "a", ttftDeadlineMs: 60_000, leaseMs: 30_000 });
  assert.equal(first.response.lease?.seconds, 30n);
  const second = await client.choose({ model: "sim", text: "a", deny: [first.replicaId], policy: "round-robin" });
  assert.notEqual(second.replicaId, first.replicaId);
  assert.equal(second.response.policy, "round-robin");
  const pinned = await client.choose({ model: "sim", text: "a", pin: first.replicaId });
  assert.equal(pinned.response.reason, "pinned");
  const lora = await client.choose({ model: "sim", adapter: "sql", text: "a" });
  assert.equal(lora.bodyFor({ model: "sim" }).model, "sql");
  await Promise.all([first, second, pinned, lora].map((choice) => choice.release(ReleaseReason.COMPLETED)));
});

test("errors have kinds and reasons", async () => {
  await assert.rejects(client.choose({ model: "none", text: "a" }), (e: unknown) => {
    assert(e instanceof NotFoundError && e instanceof KvpilotError);
    assert.equal(e.reason, "MODEL_NOT_FOUND");
    assert.equal(e.code, Code.NotFound);
    return true;
  });
  await assert.rejects(client.choose({ model: "sim", text: "a", priority: 2000 }), InvalidRequestError);
  await assert.rejects(client.explain({ decisionId: "nothing" }), { reason: "DECISION_NOT_FOUND" });
  const nobody = new Client(await closedPort());
  await assert.rejects(nobody.choose({ model: "sim", text: "a" }), UnavailableError);
  nobody.close();
});

test("wrong addresses and missing prompts are named", async () => {
  const rest = new Client(env("KVPILOT_HTTP"));
  await assert.rejects(rest.choose({ model: "sim", text: "a" }), /this is kvpilot's REST address .* gRPC is at its gRPC address/);
  rest.close();
  const untyped = client as unknown as { choose(request: object): Promise<Choice> };
  await assert.rejects(untyped.choose({ model: "sim" }), /give one of messages, text, tokenIds, body: the prompt is missing/);
  await assert.rejects(untyped.choose({ text: "a", body: chat }), /not text and body/);
  const choice = await client.choose({ model: "sim", tokenIds: [] });
  assert(choice.booked);
  await choice.release(ReleaseReason.COMPLETED);
});

test("calls end with their deadline and their signal", async () => {
  await assert.rejects(collect(client.watchDecisions({}, { timeoutMs: 50 })), DeadlineError);
  const reason = new Error("left");
  await assert.rejects(client.choose({ model: "sim", text: "a" }, { signal: AbortSignal.abort(reason) }), reason);
  const controller = new AbortController();
  const chunks = client.chatStream({ ...chat, max_tokens: 50_000 }, { signal: controller.signal });
  await chunks.next();
  controller.abort(reason);
  await assert.rejects(collect(chunks), reason);
});

test("tokens", async () => {
  const ids = await client.tokenize("sim", { text: "hello world" });
  assert((await client.detokenize("sim", ids)).endsWith("hello world"));
  assert(
    (await client.tokenize("sim", { messages })).length > (await client.tokenize("sim", { text: "What is a KV cache?" })).length,
  );
});

test("replicas are listed and watched", async () => {
  const replicas = await client.listReplicas("sim");
  assert.equal(replicas.length, 2);
  assert(replicas.every((replica) => replica.state === ReplicaState.READY));
  const seen = new Set<string>();
  for await (const { replica } of client.watchReplicas()) {
    seen.add(replica?.replicaId ?? "");
    if (seen.size === 2) {
      break;
    }
  }
  assert.deepEqual(seen, new Set(replicas.map((replica) => replica.replicaId)));
});

test("answers through the router", async () => {
  assert((await client.chat(chat)).choices[0]?.message.content);
  const chunks = await collect(client.chatStream({ ...chat, stream_options: { include_usage: true } }));
  assert(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""));
  assert.equal(chunks.at(-1)?.usage?.completion_tokens, 12);
  const prompt = { model: "sim", prompt: "a", max_tokens: 5 };
  assert((await client.completion(prompt)).choices[0]?.text);
  assert((await collect(client.completionStream(prompt))).some((chunk) => chunk.choices[0]?.text));
  await assert.rejects(collect(client.chatStream({ ...chat, model: "none" })), NotFoundError);
  await assert.rejects(client.chat({ ...chat, max_tokens: -1 }), (e: unknown) => {
    assert(e instanceof KvpilotError && e.body);
    assert(JSON.parse(new TextDecoder().decode(e.body)).error.message);
    return true;
  });
});

test("a direct stream reports its lifecycle", async () => {
  const tracker = client.track();
  for (const [requestId, options] of Object.entries({ "ts-direct": {}, "ts-tracked": { tracker } })) {
    const chunks = await collect(client.streamDirect(chat, { choose: { requestId }, progressEvery: 2, ...options }));
    assert(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""));
    const done = await outcome({ requestId });
    assert.equal(done.end, End.COMPLETED);
    assert.equal(done.outputTokens, 12);
    assert(done.ttft);
  }
  await tracker.close();
});

test("a direct stream that is left or aborted is canceled, a refused one rejected", async () => {
  for await (const _ of client.streamDirect({ ...chat, max_tokens: 50_000 }, { choose: { requestId: "ts-left" } })) {
    break;
  }
  assert.equal((await outcome({ requestId: "ts-left" })).end, End.CANCELED);
  const controller = new AbortController();
  const aborted = client.streamDirect(
    { ...chat, max_tokens: 50_000 },
    { choose: { requestId: "ts-abort" }, signal: controller.signal },
  );
  await aborted.next();
  controller.abort();
  await assert.rejects(collect(aborted), { name: "AbortError" });
  assert.equal((await outcome({ requestId: "ts-abort" })).end, End.CANCELED);
  await assert.rejects(
    collect(client.streamDirect({ ...chat, max_tokens: -1 }, { choose: { requestId: "ts-refused" } })),
    ReleaseReason,
  ReplicaError,
  );
  assert.equal((await outcome({ requestId: "ts-refused" })).end, End.REJECTED);
});

test("a tracker carries the reports of many choices, and its end releases them", async () => {
  const tracker = client.track();
  const choices = await Promise.all(Array.from({ length: 8 }, () => tracker.choose({ model: "sim", text: "a" })));
  assert.equal(await inFlight(), 8);
  await Promise.all(choices.slice(0, 4).map((choice, i) => choice.prefillDone().then(() => choice.progress(i + 1))));
  const first = choices[0];
  assert(first);
  await first.release(ReleaseReason.COMPLETED, { outputTokens: 9 });
  assert.equal((await outcome({ decisionId: first.response.decisionId })).outputTokens, 9);
  await assert.rejects(first.progress(10), { reason: "RESERVATION_ENDED" });
  assert.equal(await inFlight(), 7); // a report that failed did not end the stream
  await tracker.close();
  await eventually("the end of the stream releases", async () => (await inFlight()) === 0);
  await assert.rejects(tracker.choose({ model: "sim", text: "a" }), TrackerClosedError);
});

test("decisions are watched", async () => {
  const watched = client.watchDecisions({ model: "sim" });
  const ends: End[] = [];
  const reading = (async () => {
    for await (const { decision } of watched) {
      if (decision?.requestId.startsWith("ts-watched") && decision.outcome) {
        ends.push(decision.outcome.end);
        break;
      }
    }
  })();
  // The watch has no sign that it has begun, so requests are made until it shows one.
  const deadline = Date.now() + 20_000;
  for (let i = 0; ends.length === 0; i++) {
    assert(Date.now() < deadline, "no decision was seen");
    await (await client.choose({ model: "sim", text: "a", requestId: `ts-watched-${i}` })).release(ReleaseReason.COMPLETED);
  }
  await reading;
  assert.deepEqual(ends, [End.COMPLETED]);
});

test("the OpenAI SDK goes through the router, and to the chosen replica", async () => {
  const routed = new OpenAI({ baseURL: `http://${env("KVPILOT_HTTP")}/v1`, apiKey: "none" });
  const answer = await routed.chat.completions.create(chat);
  assert(answer.choices[0]?.message.content);
  const choice = await client.choose({ body: chat });
  await choice.run(async () => {
    const direct = new OpenAI(choice.openAIOptions());
    let text = "";
    for await (const chunk of await direct.chat.completions.create(choice.bodyFor({ ...chat, stream: true as const }))) {
      text += chunk.choices[0]?.delta.content ?? "";
    }
    assert(text);
  });
});

test("TLS and the key", async () => {
  const address = env("KVPILOT_TLS_GRPC");
  const { readFileSync } = await import("node:fs");
  const tls = { ca: readFileSync(env("KVPILOT_CA")) };
  const secure = new Client(address, { tls, apiKey: env("KVPILOT_KEY") });
  await (await secure.choose({ model: "sim", text: "a" })).release(ReleaseReason.COMPLETED);
  const tracker = secure.track();
  await (await tracker.choose({ model: "sim", text: "a" })).release(ReleaseReason.COMPLETED);
  await tracker.close();
  secure.close();
  const keyless = new Client(address, { tls });
  await assert.rejects(keyless.choose({ model: "sim", text: "a" }), (e: unknown) => {
    assert(e instanceof AuthenticationError);
    assert.equal(e.reason, "UNAUTHENTICATED");
    return true;
  });
  keyless.close();
  const stranger = new Client(address, { tls: true });
  await assert.rejects(stranger.choose({ model: "sim", text: "a" }), KvpilotError);
  stranger.close();
  assert.throws(() => new Client("http://localhost:1", { tls: true }), TypeError);
});
