// What a healthy router does not show: retries, the details of an error, a broken stream. The server is a double.
import assert from "node:assert/strict";
import { constants, createServer, type Http2Server, type ServerHttp2Session } from "node:http2";
import { test } from "node:test";
import { setTimeout } from "node:timers/promises";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, type ConnectRouter } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { Client, DeadlineError, OverloadedError, ReleaseReason, TrackerClosedError, UnavailableError } from "kvpilot";
import { InferenceService, RoutingService } from "kvpilot/v1";

async function serve(routes: (router: ConnectRouter) => void, use: (client: Client) => Promise<void>): Promise<void> {
  const server: Http2Server = createServer(connectNodeAdapter({ routes }));
  const sessions = new Set<ServerHttp2Session>();
  server.on("session", (session) => sessions.add(session));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const client = new Client(`127.0.0.1:${(server.address() as { port: number }).port}`, { apiKey: "secret" });
  try {
    await use(client);
  } finally {
    client.close();
    for (const session of sessions) {
      session.destroy();
    }
    await new Promise((resolve) => server.close(resolve));
  }
}

function unavailable(failures: number): { calls: number; answer(): void } {
  return {
    calls: 0,
    answer() {
      if (++this.calls <= failures) {
        throw new ConnectError("starting", Code.Unavailable);
      }
    },
  };
}

test("what may be repeated is retried, with the key", async () => {
  const state = unavailable(2);
  let key: string | null = "";
  const routes = (router: ConnectRouter) =>
    router.service(RoutingService, {
      detokenize: (_, context) => {
        key = context.requestHeader.get("authorization");
        state.answer();
        return { texts: ["a"] };
      },
    });
  await serve(routes, async (client) => assert.equal(await client.detokenize("m", [1]), "a"));
  assert.equal(state.calls, 3);
  assert.equal(key, "Bearer secret");
});

test("four attempts are the limit, and a choice has one", async () => {
  const state = unavailable(100);
  const answer = () => {
    state.answer();
    return {};
  };
  await serve(
    (router) => router.service(RoutingService, { detokenize: answer, chooseReplica: answer }),
    async (client) => {
      await assert.rejects(client.detokenize("m", [1]), UnavailableError);
      assert.equal(state.calls, 4);
      await assert.rejects(client.choose({ text: "a" }), UnavailableError);
      assert.equal(state.calls, 5);
    },
  );
});

test("an error has its details", async () => {
  // RetryInfo {retry_delay: 2 s}, ErrorInfo {RATE_LIMIT_EXCEEDED, kvpilot, {tenant: t}} and HttpBody {data: {}} as bytes.
  const string = (field: number, text: string) => [(field << 3) | 2, text.length, ...new TextEncoder().encode(text)];
  const entry = [...string(1, "tenant"), ...string(2, "t")];
  const failed = new ConnectError("slow down", Code.ResourceExhausted);
  failed.details.push(
    { type: "google.rpc.RetryInfo", value: Uint8Array.from([0x0a, 2, 0x08, 2]) },
    {
      type: "google.rpc.ErrorInfo",
      value: Uint8Array.from([...string(1, "RATE_LIMIT_EXCEEDED"), ...string(2, "kvpilot"), 0x1a, entry.length, ...entry]),
    },
    { type: "google.api.HttpBody", value: Uint8Array.from(string(2, "{}")) },
  );
  const routes = (router: ConnectRouter) =>
    router.service(RoutingService, {
      explainDecision: () => {
        throw failed;
      },
    });
  await serve(routes, async (client) => {
    await assert.rejects(client.explain({ requestId: "a" }), (e: unknown) => {
      assert(e instanceof OverloadedError);
      assert.equal(e.message, "RATE_LIMIT_EXCEEDED: slow down");
      assert.deepEqual([e.reason, e.retryAfterMs, e.metadata], ["RATE_LIMIT_EXCEEDED", 2000, { tenant: "t" }]);
      assert.equal(new TextDecoder().decode(e.body), "{}");
      return true;
    });
  });
});

test("a router that resets the stream when the deadline passes is a deadline too", async () => {
  const server = createServer();
  server.on("stream", (stream, headers) => {
    stream.on("error", () => {}); // the client may have reset it first
    const ms = Number(/^(\d+)m$/.exec(String(headers["grpc-timeout"]))?.[1]);
    void setTimeout(ms - 5).then(() => stream.close(constants.NGHTTP2_CANCEL)); // before the client's own timer
  });
  const sessions = new Set<ServerHttp2Session>();
  server.on("session", (session) => sessions.add(session));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const client = new Client(`127.0.0.1:${(server.address() as { port: number }).port}`);
  await assert.rejects(client.watchDecisions({}, { timeoutMs: 200 }).next(), DeadlineError);
  await assert.rejects(client.choose({ text: "a" }, { timeoutMs: 200 }), DeadlineError);
  client.close();
  for (const session of sessions) {
    session.destroy();
  }
  await new Promise((resolve) => server.close(resolve));
});

test("events are cut out of bytes at any boundaries", async () => {
  const bytes = new TextEncoder().encode(': note\r\n\r\ndata: {"a":"é"}\r\n\r\ndata:{"a":2}\n\ndata: [DONE]\n\n');
  const routes = (router: ConnectRouter) =>
    router.service(InferenceService, {
      async *responses() {
        for (const byte of bytes) {
          yield { data: Uint8Array.of(byte) };
        }
      },
    });
  await serve(routes, async (client) => {
    const events: object[] = [];
    for await (const event of client.stream("/v1/responses", {})) {
      events.push(event);
    }
    assert.deepEqual(events, [{ a: "é" }, { a: 2 }]);
  });
});

test("reports fail when the tracker's stream breaks", async () => {
  const routes = (router: ConnectRouter) =>
    router.service(RoutingService, {
      chooseReplica: () => ({ reservationId: "r" }),
      async *trackReservation(requests) {
        for await (const { sequence, event } of requests) {
          if (event.case === "release") {
            throw new ConnectError("stopping", Code.Unavailable);
          }
          if (event.case !== "renew") {
            yield { sequence };
          }
        }
      },
    });
  await serve(routes, async (client) => {
    const tracker = client.track();
    const choice = await tracker.choose({ text: "a" });
    await choice.prefillDone();
    await assert.rejects(choice.renew({ timeoutMs: 20 }), { name: "TimeoutError" });
    await assert.rejects(choice.release(ReleaseReason.COMPLETED), (e: unknown) => e instanceof TrackerClosedError && /stopping/.test(e.message));
    await assert.rejects(choice.progress(1), TrackerClosedError);
    await tracker.close();
  });
});

test("a followed stream renews its lease while the replica is waited for, and not when it is left unread", async () => {
  const reports: string[] = [];
  const renewals = () => reports.filter((name) => name === "renew").length;
  const routes = (router: ConnectRouter) =>
    router.service(RoutingService, {
      chooseReplica: () => ({ reservationId: "r", lease: durationFromMs(90) }),
      reportReservation: ({ event }) => {
        const { case: name, value } = event;
        reports.push(name === "release" ? `release ${ReleaseReason[value.reason]} ${value.outputTokens}` : `${name}`);
        return {};
      },
    });
  async function* slow(): AsyncGenerator<string> {
    while (renewals() < 3) {
      await setTimeout(5);
    }
    yield "a";
    yield "b";
  }
  await serve(routes, async (client) => {
    const text: string[] = [];
    for await (const token of (await client.choose({ text: "a" })).follow(slow(), { progressEvery: 2 })) {
      text.push(token);
    }
    assert.deepEqual(text, ["a", "b"]);
    assert.equal(reports.filter((name) => name === "firstToken").length, 1);
    assert.deepEqual(reports.slice(-1), ["release COMPLETED 2"]);
    assert(reports.includes("progress"));

    reports.length = 0;
    const unread = (await client.choose({ text: "a" })).follow(from("a"));
    await unread.next();
    await setTimeout(400); // a dozen times the interval of renewals
    assert(renewals() <= 1, "a stream that is not read is renewed");
    await unread.return();
    assert.deepEqual(reports.slice(-1), ["release CANCELED 1"]);
  });
});

test("a report that fails does not fail the answer, and a release that fails neither", async () => {
  const answer = () => {
    throw new ConnectError("broken", Code.Internal);
  };
  const routes = (router: ConnectRouter) =>
    router.service(RoutingService, {
      chooseReplica: () => ({ reservationId: "r", lease: durationFromMs(60_000) }),
      reportPrefillCompleted: answer,
      releaseReservation: answer,
    });
  await serve(routes, async (client) => {
    const followed = (await client.choose({ text: "a" })).follow(from("a", "b"));
    assert.deepEqual(
      [(await followed.next()).value, (await followed.next()).value, (await followed.next()).done],
      ["a", "b", true],
    );
  });
});

async function* from<T>(...items: T[]): AsyncGenerator<T> {
  yield* items;
}
