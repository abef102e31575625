// What the tests share: a real router before simulated replicas, whose addresses are in the environment.
import assert from "node:assert/strict";
import { Client } from "kvpilot";
import type { Outcome } from "kvpilot/v1";

export function env(name: string): string {
  const value = process.env[name];
  assert(value, `${name} is not set`);
  return value;
}

export const messages = [{ role: "user" as const, content: "What is a KV cache?" }];
export const chat = { model: "sim", messages, max_tokens: 12 };
export const client = new Client(env("KVPILOT_GRPC"));

export async function inFlight(): Promise<number> {
  const { ranks } = await client.routing.getLoads({});
  return ranks.reduce((sum, rank) => sum + rank.requests, 0);
}

export async function eventually(what: string, holds: () => Promise<boolean>): Promise<void> {
  const deadline = Date.now() + 20_000;
  while (!(await holds())) {
    assert(Date.now() < deadline, what);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

// Waits for the outcome: the router records it after the end of the call that caused it.
export async function outcome(key: { decisionId: string } | { requestId: string }): Promise<Outcome> {
  let found: Outcome | undefined;
  await eventually("the decision has no outcome", async () => {
    found = (await client.explain(key))[0]?.outcome;
    return found !== undefined;
  });
  return found as Outcome;
}

export async function collect<T>(items: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = [];
  for await (const item of items) {
    all.push(item);
  }
  return all;
}
