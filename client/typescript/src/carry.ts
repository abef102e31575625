import { Code } from "@connectrpc/connect";
import { KvpilotError } from "./errors.js";

/** What a client says of a stream: "carry" keeps what comes, "continue" asks for the rest of it. */
export const resumeHeader = "x-kvpilot-resume";

const receivedMember = "kvpilot_received";
const carriedPaths = ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"];
/** Bytes that are kept of a stream. A longer one is not continued. */
const maxCarried = 16 << 20;
// How often in a row a stream is asked for: before anything of it has come, and after.
const firstTries = 3;
const laterTries = 12;
const firstPauseMs = 50;
const lastPauseMs = 1000;

const ids = /"(prompt_token_ids|token_ids)":\[[0-9, ]*\]/g;
const ends = ["data: [DONE]", "event: message_stop", "event: response.completed", "event: response.incomplete"];
// What a connection that is cut off looks like, and a router that is not there. What the caller cancels is no KvpilotError.
const lostCodes = [Code.Unavailable, Code.Aborted, Code.Canceled, Code.Internal];

/** The events of one stream, kept so that another router can continue it. */
export class Carrier {
  private received: string[] = [];
  private size = 0;
  private rest = Buffer.alloc(0);
  private tries = 0;

  constructor(private readonly body: Uint8Array<ArrayBuffer>) {}

  /** feed takes the next bytes and returns the whole events for the caller, without the ids that it did not ask for. */
  feed(part: Uint8Array): Uint8Array {
    const all = Buffer.concat([this.rest, part]);
    const end = all.lastIndexOf("\n\n") + 2;
    this.rest = all.subarray(Math.max(end, 0));
    if (end < 2) {
      this.rest = all;
      return Buffer.alloc(0);
    }
    const events = all
      .subarray(0, end)
      .toString()
      .split(/(?<=\n\n)/);
    this.received.push(...events);
    this.size += end;
    this.tries = 0;
    return Buffer.from(events.map(plain).join(""));
  }

  /** over says whether the stream has come to its end. */
  get over(): boolean {
    const last = this.received.at(-1) ?? "";
    return ends.some((end) => last.includes(end));
  }

  /** lost says whether a stream that ended with the error has lost its router, and another one may continue it. */
  lost(error: unknown): boolean {
    if (!(error instanceof KvpilotError) || !lostCodes.includes(error.code) || this.size > maxCarried) {
      return false;
    }
    if (error.reason !== "" && error.reason !== "SHUTTING_DOWN" && error.reason !== "ROUTER_UNREACHABLE") {
      return false;
    }
    this.tries++;
    return this.tries <= (this.size > 0 ? laterTries : firstTries);
  }

  /** pauseMs is how long to wait before the stream is asked for again. */
  get pauseMs(): number {
    return Math.min(firstPauseMs * 2 ** (this.tries - 1), lastPauseMs);
  }

  /** request is the body for the next router, and the header that says what it is. */
  request(): { body: Uint8Array<ArrayBuffer>; how: string } {
    this.rest = Buffer.alloc(0);
    if (this.size === 0) {
      return { body: this.body, how: "carry" };
    }
    const open = Buffer.from(this.body).toString().trim().slice(0, -1);
    return { body: Buffer.from(`${open},"${receivedMember}":${JSON.stringify(this.received.join(""))}}`), how: "continue" };
  }
}

/** plain is an event as the caller gets it: nothing when it is there for the ids alone. */
function plain(event: string): string {
  if (event.startsWith(": ids ")) {
    return "";
  }
  const without = event.replace(ids, '"$1":null');
  if (without.length !== event.length && without.includes('"delta":{}') && without.includes('"finish_reason":null')) {
    return "";
  }
  return without;
}

/** carrier makes a Carrier for requests whose streams routers continue; undefined for any other, and where the caller says itself what becomes of the stream. */
export function carrier(path: string, body: Uint8Array<ArrayBuffer>, headers: Record<string, string> = {}): Carrier | undefined {
  if (!carriedPaths.includes(path) || Object.keys(headers).some((name) => name.toLowerCase() === resumeHeader)) {
    return undefined;
  }
  try {
    const asked = JSON.parse(Buffer.from(body).toString()) as { stream?: unknown; return_token_ids?: unknown };
    return asked.stream === true && (asked.return_token_ids ?? null) === null ? new Carrier(body) : undefined;
  } catch {
    return undefined;
  }
}
