// Streams that are followed: how each end of one reaches the router.
import assert from "node:assert/strict";
import { after, afterEach, test } from "node:test";
import { setTimeout } from "node:timers/promises";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { type Choice, End, ReplicaError } from "kvpilot";
import type { Outcome } from "kvpilot/v1";
import OpenAI from "openai";
import { chat, client, collect, eventually, inFlight, outcome } from "./router.js";

const streamed = { ...chat, stream: true as const, stream_options: { include_usage: true } };
const long = { ...chat, stream: true as const, max_tokens: 50_000, ignore_eos: true };

after(() => client.close());
afterEach(() => eventually("a test left load behind", async () => (await inFlight()) === 0));

// ask streams from the chosen replica with the OpenAI SDK.
function ask(choice: Choice, body: typeof long | typeof streamed, signal?: AbortSignal) {
  return new OpenAI(choice.openAIOptions()).chat.completions.create(choice.bodyFor(body), signal && { signal });
}

function post(choice: Choice, body: object, signal?: AbortSignal): Promise<Response> {
  return fetch(`${choice.url}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", ...choice.requestHeaders },
    body: JSON.stringify(choice.bodyFor(body)),
    ...(signal && { signal }),
  });
}

function ended(choice: Choice): Promise<Outcome> {
  return outcome({ decisionId: choice.response.decisionId });
}

async function idle(): Promise<void> {
  const replicas = await client.listReplicas("sim");
  await eventually("the replica goes on working", async () => {
    const states = await Promise.all(replicas.map(async ({ url }) => (await fetch(`${url}/sim/state`)).json()));
    const ranks = states.flatMap((state) => (state as { ranks: { running: number; waiting: number }[] }).ranks);
    return ranks.every(({ running, waiting }) => running + waiting === 0);
  });
}

// With faults, use is called: { die_after: 3 } and others of the simulator.
async function faulty(faults: object, use: () => Promise<void>): Promise<void> {
  const replicas = await client.listReplicas("sim");
  const put = (body: string) => Promise.all(replicas.map(({ url }) => fetch(`${url}/sim/faults`, { method: "POST", body })));
  await put(JSON.stringify({ ...faults, paths: ["/v1/chat"] }));
  try {
    await use();
  } finally {
    await put("");
  }
}

async function* from<T>(...items: T[]): AsyncGenerator<T> {
  yield* items;
}

test("the SDK's stream, by the client and by a tracker", async () => {
  const tracker = client.track();
  for (const chooser of [client, tracker]) {
    const choice = await chooser.choose({ body: streamed });
    let text = "";
    for await (const chunk of choice.follow(await ask(choice, streamed), { progressEvery: 4 })) {
      text += chunk.choices[0]?.delta.content ?? "";
    }
    assert(text);
    assert.equal(await inFlight(), 0); // the end of the loop is the end of the booking
    const done = await ended(choice);
    assert.equal(done.end, End.COMPLETED);
    assert.equal(done.outputTokens, 12);
    assert(done.ttft);
  }
  await tracker.close();
});

test("answers of fetch and plain iterables", async () => {
  const sse = await client.choose({ body: streamed });
  const parts = await collect(sse.follow(await post(sse, streamed)));
  assert(Buffer.concat(parts).toString().trimEnd().endsWith("[DONE]"));
  assert.equal((await ended(sse)).outputTokens, 12);

  const whole = await client.choose({ body: chat });
  const answer = Buffer.concat(await collect(whole.follow(await post(whole, chat)))).toString();
  assert.equal(JSON.parse(answer).usage.completion_tokens, 12);
  assert.equal((await ended(whole)).outputTokens, 12);

  const refused = await client.choose({ body: chat });
  assert.match(Buffer.concat(await collect(refused.follow(await post(refused, { ...chat, max_tokens: -1 })))).toString(), /error/);
  assert.equal((await ended(refused)).end, End.REJECTED);

  const tokens = await client.choose({ model: "sim", text: "a" });
  assert.deepEqual(await collect(tokens.follow(from("a", "b", "c"))), ["a", "b", "c"]);
  assert.throws(() => tokens.follow(from("a")), /followed already/);
  const done = await ended(tokens);
  assert.deepEqual([done.end, done.outputTokens], [End.COMPLETED, 3]);
});

test("a loop that is left releases at once, and stops the replica", async () => {
  const sdk = await client.choose({ body: long });
  for await (const _ of sdk.follow(await ask(sdk, long))) {
    break;
  }
  assert.equal(await inFlight(), 0);
  const plain = await client.choose({ body: long });
  for await (const _ of plain.follow(await post(plain, long))) {
    break;
  }
  assert.equal(await inFlight(), 0);
  for (const choice of [sdk, plain]) {
    const done = await ended(choice);
    assert.equal(done.end, End.CANCELED);
    assert((done.outputTokens ?? 0) >= 1);
  }
  await idle();
});

test("a stream that is left before its first chunk, and one that is waited for", async () => {
  const never = await client.choose({ body: long });
  await never.follow(await ask(never, long)).return();
  assert.equal((await ended(never)).end, End.CANCELED);

  const waited = await client.choose({ body: long });
  await faulty({ stall_after: 3 }, async () => {
    const followed = waited.follow(await ask(waited, long));
    let next = followed.next();
    while ((await Promise.race([next, setTimeout(200)])) !== undefined) {
      next = followed.next();
    }
    await followed.return(); // it does not wait for the chunk
    assert.equal((await next).done, true);
  });
  assert.equal((await ended(waited)).end, End.CANCELED);
  await idle();
});

test("a stream that is disposed of, and one that is dropped", async () => {
  const disposed = await client.choose({ body: long });
  const followed = disposed.follow(await ask(disposed, long));
  await followed.next();
  await followed[Symbol.asyncDispose]();
  await followed.return(); // it may be left twice
  assert.equal((await ended(disposed)).end, End.CANCELED);
  assert.equal((await followed.next()).done, true);

  const dropped = await client.choose({ body: long });
  await (async () => {
    await dropped.follow(await ask(dropped, long)).next();
  })();
  setFlagsFromString("--expose-gc");
  const collectGarbage = runInNewContext("gc") as () => void;
  await eventually("what was dropped keeps its booking", async () => {
    collectGarbage();
    return (await inFlight()) === 0;
  });
  assert.equal((await ended(dropped)).end, End.CANCELED);
  await idle();
});

test("an abort is a cancellation", async () => {
  const left = new Error("left");
  for (const follow of [
    async (choice: Choice, controller: AbortController) => choice.follow(await ask(choice, long, controller.signal)),
    async (choice: Choice, { signal }: AbortController) => choice.follow(await post(choice, long, signal), { signal }),
  ]) {
    const choice = await client.choose({ body: long });
    const controller = new AbortController();
    const followed = await follow(choice, controller);
    await followed.next();
    controller.abort(left);
    await collect<unknown>(followed).catch((e) => assert.equal(e, left)); // the SDK ends its stream without an error
    assert.equal((await ended(choice)).end, End.CANCELED);
  }
  const choice = await client.choose({ body: long });
  await assert.rejects(
    choice.run(() => ask(choice, long, AbortSignal.abort())),
    OpenAI.APIUserAbortError,
  );
  assert.equal((await ended(choice)).end, End.CANCELED);
  await idle();
});

test("an answer that has ended is complete however it is left", async () => {
  const choice = await client.choose({ body: streamed });
  for await (const chunk of choice.follow(await ask(choice, streamed))) {
    if (chunk.choices[0]?.finish_reason) {
      break;
    }
  }
  assert.equal((await ended(choice)).end, End.COMPLETED);
});

test("failures of the reader, of the request and of the replica", async () => {
  const reader = await client.choose({ body: streamed });
  const reading = reader.run(async () => {
    for await (const _ of reader.follow(await ask(reader, streamed))) {
      throw new RangeError("mine");
    }
  });
  await assert.rejects(reading, RangeError);
  assert.equal((await ended(reader)).end, End.CANCELED); // the replica did not fail

  const bad = await client.choose({ body: streamed });
  await assert.rejects(
    bad.run(async () => bad.follow(await ask(bad, { ...streamed, max_tokens: -1 }))),
    OpenAI.BadRequestError,
  );
  assert.equal((await ended(bad)).end, End.REJECTED);

  await faulty({ die_after: 3 }, async () => {
    const died = await client.choose({ body: streamed });
    await assert.rejects(collect(died.follow(await post(died, streamed))), TypeError);
    assert.equal((await ended(died)).end, End.FAILED);
  });
  await faulty({ error_after: 3 }, async () => {
    const failed = await client.choose({ body: streamed });
    await assert.rejects(collect(failed.follow(await ask(failed, streamed))), OpenAI.APIError);
    assert.equal((await ended(failed)).end, End.FAILED);
    const bytes = await client.choose({ body: streamed });
    await collect(bytes.follow(await post(bytes, streamed))); // bytes are passed on, whatever they say
    assert.equal((await ended(bytes)).end, End.FAILED);
    await assert.rejects(collect(client.streamDirect(chat, { choose: { requestId: "ts-error" } })), ReplicaError);
    assert.equal((await outcome({ requestId: "ts-error" })).end, End.FAILED);
  });
});

test("what outcome says goes before what the stream says", async () => {
  const choice = await client.choose({ model: "sim", text: "a" });
  choice.outcome({ outputTokens: 40, cachedTokens: 16 });
  await collect(choice.follow(from("a", "b")));
  const done = await ended(choice);
  assert.deepEqual([done.end, done.outputTokens], [End.COMPLETED, 40]);
});
