// A stream is continued at another router when its own is gone.
import assert from "node:assert/strict";
import { type AddressInfo, createConnection, createServer, type Socket } from "node:net";
import { after, test } from "node:test";
import { Client, UnavailableError } from "kvpilot";
import { client, env } from "./router.js";

const router = env("KVPILOT_GRPC");

// A way to the router that breaks after so many bytes of answers, once and for all, as a router that is killed does.
async function gate(limit: number): Promise<{ address: string; close: () => void }> {
  const sockets: Socket[] = [];
  let left = limit;
  const server = createServer((near) => {
    const [host, port] = [router.slice(0, router.lastIndexOf(":")), Number(router.slice(router.lastIndexOf(":") + 1))];
    const far = createConnection(port, host);
    sockets.push(near, far);
    near.on("error", () => {});
    far.on("error", () => {});
    near.pipe(far);
    far.on("data", (data) => {
      left -= data.length;
      if (left < 0) {
        close();
      } else {
        near.write(data);
      }
    });
  });
  const close = () => {
    server.close();
    for (const socket of sockets) {
      socket.destroy();
    }
  };
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { address: `127.0.0.1:${(server.address() as AddressInfo).port}`, close };
}

const tools = [
  { type: "function", function: { name: "get_weather", parameters: { type: "object", properties: { city: { type: "string" } } } } },
];
const user = (content: string) => [{ role: "user", content }];
const kinds = [
  ["/v1/chat/completions", { messages: user("Tell me"), max_tokens: 60 }],
  ["/v1/chat/completions", { messages: user("think first, then use get_weather"), max_tokens: 90, tools }],
  ["/v1/messages", { messages: user("Tell me more"), max_tokens: 60 }],
  ["/v1/responses", { input: "Tell me more", max_output_tokens: 60 }],
] as const;

interface Delta {
  content?: string | null;
  reasoning?: string;
  text?: string;
  thinking?: string;
  partial_json?: string;
  tool_calls?: { function: { name?: string; arguments?: string } }[];
}

interface Event {
  type?: string;
  delta?: string | Delta;
  choices?: { delta: Delta; finish_reason?: string | null; token_ids?: number[] | null }[];
}

function added(delta: Delta): string {
  const calls = (delta.tool_calls ?? []).map((call) => (call.function.name ?? "") + (call.function.arguments ?? ""));
  return [delta.content, delta.reasoning, delta.text, delta.thinking, delta.partial_json, ...calls].join("");
}

// What a stream says, without ids and times.
async function said(
  through: Client,
  path: (typeof kinds)[number][0],
  body: object,
  headers: Record<string, string> = {},
): Promise<string> {
  let out = "";
  for await (const event of through.stream<Event>(path, body, { headers })) {
    for (const choice of event.choices ?? []) {
      assert.equal(choice.token_ids ?? null, null);
      out += added(choice.delta) + (choice.finish_reason ?? "");
    }
    if (typeof event.delta === "object") {
      out += added(event.delta);
    } else {
      out += event.delta ?? (event.type && event.type !== "response.in_progress" ? `<${event.type}>` : "");
    }
  }
  return out;
}

after(() => client.close());

for (const [path, more] of kinds) {
  test(`a stream of ${path} continues at another router, ${Object.keys(more)}`, async () => {
    const body = { model: "sim", stream: true, temperature: 0, ...more };
    const want = await said(client, path, body);
    for (const limit of [1500, 3000, 4500, 6000]) {
      const { address, close } = await gate(limit);
      const through = new Client([address, router]);
      try {
        assert.equal(await said(through, path, body), want);
      } finally {
        through.close();
        close();
      }
    }
  });
}

test("a stream that is not carried ends", async () => {
  const { address, close } = await gate(3000);
  const through = new Client([address, router]);
  try {
    // The text alone is longer than what the gate lets through, however few events a busy router makes of it.
    const body = { model: "sim", stream: true, ...kinds[0][1], max_tokens: 2000, ignore_eos: true };
    await assert.rejects(said(through, kinds[0][0], body, { "x-kvpilot-resume": "off" }));
  } finally {
    through.close();
    close();
  }
});

test("a router that was never there is an error soon", async () => {
  const { address, close } = await gate(0);
  close();
  const through = new Client(address);
  await assert.rejects(said(through, kinds[0][0], { model: "sim", stream: true, ...kinds[0][1] }), UnavailableError);
  through.close();
});
