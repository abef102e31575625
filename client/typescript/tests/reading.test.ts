// What a followed stream's chunks say, without a router: a choice's reports are recorded.
import assert from "node:assert/strict";
import { test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { Choice, ReleaseReason } from "kvpilot";
import { ChooseReplicaResponseSchema } from "kvpilot/v1";

interface Seen {
  prefill: number;
  progress: number[];
  end?: ReleaseReason;
  outputTokens?: number;
  cachedTokens?: number;
}

function recorded(): [Choice, Seen] {
  const seen: Seen = { prefill: 0, progress: [] };
  const choice = new Choice(create(ChooseReplicaResponseSchema, { reservationId: "r", lease: { seconds: 60n } }), {
    report: async ({ event }) => {
      if (event?.case === "firstToken") {
        seen.prefill++;
      } else if (event?.case === "progress") {
        seen.progress.push(event.value.outputTokens ?? 0);
      } else if (event?.case === "release") {
        const { reason: end, outputTokens, cachedTokens } = event.value;
        Object.assign(seen, { end, outputTokens, cachedTokens });
      }
    },
  });
  return [choice, seen];
}

// followed reads chunks until they run out, or as many as count says.
async function followed(chunks: unknown[], { count = Infinity, progressEvery = 16 } = {}): Promise<Seen> {
  const [choice, seen] = recorded();
  const stream = choice.follow(items(chunks), { progressEvery });
  for (let i = 0; i < count && !(await stream.next()).done; i++) {}
  await stream.return();
  return seen;
}

async function* items<T>(of: T[]): AsyncGenerator<T> {
  yield* of;
}

function chunk(finish: string | null = null, index = 0, more: object = {}): object {
  return { choices: [{ index, delta: { content: "é" }, finish_reason: finish }], ...more };
}

const usage = { choices: [], usage: { completion_tokens: 7, prompt_tokens_details: { cached_tokens: 32 } } };

function sse(...events: object[]): Uint8Array {
  return new TextEncoder().encode(events.map((event) => `data: ${JSON.stringify(event)}\n\n`).join(""));
}

const done = new TextEncoder().encode("data: [DONE]\n\n");

test("bytes at any boundaries", async () => {
  const bytes = Buffer.concat([Buffer.from(": hello\n\n"), sse(chunk(), chunk("stop"), usage), done]);
  for (const step of [1, 3, 1000]) {
    const parts = Array.from({ length: Math.ceil(bytes.length / step) }, (_, i) => bytes.subarray(i * step, (i + 1) * step));
    assert.deepEqual(await followed(parts), { prefill: 1, progress: [], end: ReleaseReason.COMPLETED, outputTokens: 7, cachedTokens: 32 });
  }
});

test("lines, events and text", async () => {
  const lines = new TextDecoder().decode(sse(chunk("stop"))).split("\n");
  for (const chunks of [lines, [chunk("stop")], [": note", "event: x", "a"]]) {
    const { end, outputTokens, prefill } = await followed(chunks);
    assert.deepEqual([end, outputTokens, prefill], [ReleaseReason.COMPLETED, 1, 1]);
  }
});

test("what comes before the first token is not the first token", async () => {
  const seen = await followed([Buffer.from(': wait\n\nevent: ping\ndata: {"type": "ping"}\n\n')], { count: 1 });
  assert.deepEqual([seen.prefill, seen.outputTokens, seen.end], [0, undefined, ReleaseReason.CANCELED]);
});

test("an answer of several choices ends with the last one", async () => {
  const chunks = [chunk(null, 0), chunk(null, 1), chunk("stop", 1), chunk("length", 0)];
  assert.equal((await followed(chunks, { count: 3 })).end, ReleaseReason.CANCELED);
  assert.equal((await followed(chunks, { count: 4 })).end, ReleaseReason.COMPLETED);
});

test("progress counts as the engine does", async () => {
  const counted = chunk(null, 0, { usage: { completion_tokens: 40 } }); // several tokens to a chunk
  const seen = await followed([chunk(), chunk(), chunk(), chunk(), chunk(), counted, chunk("stop")], { progressEvery: 2 });
  assert.deepEqual(seen.progress, [2, 4, 40]);
});

test("streams that fail", async () => {
  for (const chunks of [
    [sse(chunk())], // no end: the connection was closed
    [sse(chunk(), { error: { message: "broken" } }), done],
    [chunk(), { type: "response.failed" }],
  ]) {
    assert.equal((await followed(chunks)).end, ReleaseReason.FAILED);
  }
});

test("the status of an answer, and a whole one", async () => {
  const json = { headers: { "content-type": "application/json" } };
  for (const [answer, end] of [
    [new Response("{}", { status: 422 }), ReleaseReason.REJECTED],
    [new Response("no", { status: 500 }), ReleaseReason.FAILED],
    [new Response(JSON.stringify({ choices: [{ index: 0 }], usage: usage.usage }), json), ReleaseReason.COMPLETED],
    [new Response("not JSON", json), ReleaseReason.COMPLETED],
    [new Response(null), ReleaseReason.COMPLETED],
  ] as const) {
    const [choice, seen] = recorded();
    for await (const part of choice.follow(answer)) {
      assert(part instanceof Uint8Array);
    }
    assert.equal(seen.end, end);
    assert.deepEqual([seen.outputTokens, seen.cachedTokens], seen.cachedTokens === 32 ? [7, 32] : [undefined, undefined]);
  }
});

test("messages and responses", async () => {
  const message = [
    {
      type: "message_start",
      message: { usage: { input_tokens: 9, cache_read_input_tokens: 16, output_tokens: 0 } },
    },
    { type: "content_block_delta", delta: { text: "a" } },
    { type: "message_delta", usage: { output_tokens: 5 } },
    { type: "message_stop" },
  ];
  const begun = await followed(message, { count: 2 });
  assert.deepEqual([begun.outputTokens, begun.cachedTokens], [1, 16]); // the count at a message's start is of no output
  assert.equal((await followed(message, { count: 3 })).end, ReleaseReason.CANCELED);
  const whole = await followed(message, { count: 4 });
  assert.deepEqual([whole.end, whole.outputTokens, whole.cachedTokens], [ReleaseReason.COMPLETED, 5, 16]);
  const response = await followed([
    { type: "response.output_text.delta", delta: "a" },
    { type: "response.completed", response: { usage: { output_tokens: 3, input_tokens_details: { cached_tokens: 8 } } } },
  ]);
  assert.deepEqual([response.end, response.outputTokens, response.cachedTokens], [ReleaseReason.COMPLETED, 3, 8]);
});
