import { ReleaseReason } from "./gen/kvpilot/v1/reservation_pb.js";
import { EventData } from "./sse.js";

/** Chunks between two reports of progress, unless the caller says otherwise. */
export const progressEveryDefault = 16;

// The last events of a message and of a response, and the events of a response that bring output.
const stops = new Set<unknown>(["message_stop", "response.completed", "response.incomplete"]);
const deltas = new Set<unknown>([
  "content_block_delta",
  "response.output_text.delta",
  "response.reasoning_text.delta",
  "response.function_call_arguments.delta",
]);

// A whole answer above this size is not read for its usage.
const maxWhole = 16 << 20;

/** What a Reading knows of the answer before its first chunk. */
export interface ReadingOptions {
  /** Chunks between two reports of progress. */
  progressEvery: number;
  /** The HTTP status of the answer. */
  status: number;
  /** The bytes are one JSON document and no stream. */
  whole: boolean;
}

/**
 * What can be learned of one answer, chunk by chunk: whether it has begun, how far it is, what it says of its tokens, whether it
 * is complete. It does no I/O.
 *
 * Chunks are what a stream yields: bytes of server-sent events, their lines as text, or decoded events. Text and objects of
 * other kinds count as one token each. The shapes of OpenAI's chats, completions and responses and of Anthropic's messages are
 * read.
 */
export class Reading {
  begun = false;
  /** Chunks that brought output. */
  chunks = 0;
  cachedTokens: number | undefined;
  private outputTokens: number | undefined;
  private readonly events = new EventData();
  private readonly parts: Uint8Array[] = [];
  private size = 0;
  private failed = false;
  private exhausted = false;
  private stopped = false;
  private reported = 0;
  private readonly seen = new Set<unknown>();
  private readonly finishedChoices = new Set<unknown>();

  constructor(private readonly options: ReadingOptions) {}

  /** The output tokens: as the engine counts them, else the chunks that had any; undefined when neither is known. */
  get tokens(): number | undefined {
    return this.outputTokens ?? (this.chunks || undefined);
  }

  /** The engine has said that the answer ends here. */
  get finished(): boolean {
    return this.events.done || this.stopped || (this.seen.size > 0 && this.seen.size === this.finishedChoices.size);
  }

  /** Nothing more comes: the stream has its end mark or an error, or ran out. */
  get complete(): boolean {
    return this.events.done || this.stopped || this.exhausted || this.failed;
  }

  /** The number of tokens to report now, or undefined. A number is returned once. */
  due(): number | undefined {
    if (this.chunks - this.reported < this.options.progressEvery) {
      return undefined;
    }
    this.reported = this.chunks;
    return this.tokens;
  }

  /** Reads what a stream has yielded. */
  feed(chunk: unknown): void {
    if (chunk instanceof Uint8Array) {
      this.bytes(chunk);
    } else if (typeof chunk === "string") {
      this.text(chunk);
    } else {
      this.event(chunk);
    }
  }

  /** How the request ended, when the stream has run out by itself. */
  ended(): ReleaseReason {
    this.exhausted = true;
    if (this.options.status >= 400) {
      return this.options.status < 500 ? ReleaseReason.REJECTED : ReleaseReason.FAILED;
    }
    if (this.options.whole) {
      this.readWhole();
    }
    // A stream without its end: the connection was closed in mid-answer.
    const broken = this.seen.size > 0 && !this.finished && !this.options.whole;
    return this.failed || broken ? ReleaseReason.FAILED : ReleaseReason.COMPLETED;
  }

  /** How the request ended, when its reader wants no more of it. */
  left(): ReleaseReason {
    if (this.exhausted) {
      return this.ended();
    }
    if (this.failed) {
      return ReleaseReason.FAILED;
    }
    return this.finished ? ReleaseReason.COMPLETED : ReleaseReason.CANCELED;
  }

  private bytes(part: Uint8Array): void {
    if (this.options.status >= 400) {
      return;
    }
    if (this.options.whole) {
      this.size += part.length;
      if (this.size <= maxWhole) {
        this.parts.push(Uint8Array.from(part)); // the reader owns its own
      }
      return;
    }
    for (const data of this.events.feed(part)) {
      this.data(data);
    }
  }

  private text(text: string): void {
    if (text.startsWith("data:")) {
      this.bytes(new TextEncoder().encode(`${text.trimEnd()}\n`));
    } else if (text.trim() !== "" && !/^(?::|event:|id:|retry:)/.test(text)) {
      this.count();
    }
  }

  private data(data: string): void {
    let event: unknown;
    try {
      event = JSON.parse(data);
    } catch {
      this.count();
      return;
    }
    this.event(event);
  }

  private count(): void {
    this.begun = true;
    this.chunks++;
  }

  private event(event: unknown): void {
    const kind = member(event, "type");
    if (kind === "ping") {
      return;
    }
    this.begun = true;
    const choices = member(event, "choices");
    if (!Array.isArray(choices) && (member(event, "error") || kind === "error" || kind === "response.failed")) {
      this.failed = true;
      return;
    }
    this.usage(member(event, "usage") ?? member(member(event, "response"), "usage"));
    this.cached(member(member(event, "message"), "usage")); // at a message's start, when nothing of it is counted yet
    if (Array.isArray(choices)) {
      this.choices(choices);
    } else if (stops.has(kind)) {
      this.stopped = true;
    } else if (kind === undefined || kind === null || deltas.has(kind)) {
      this.chunks++;
    }
  }

  private choices(choices: unknown[]): void {
    this.chunks += choices.length > 0 ? 1 : 0;
    for (const choice of choices) {
      const index = member(choice, "index") ?? 0;
      this.seen.add(index);
      if (member(choice, "finish_reason")) {
        this.finishedChoices.add(index);
      }
    }
  }

  private usage(usage: unknown): void {
    this.outputTokens = count(usage, "output_tokens") ?? count(usage, "completion_tokens") ?? this.outputTokens;
    this.cached(usage);
  }

  private cached(usage: unknown): void {
    const details = member(usage, "prompt_tokens_details") ?? member(usage, "input_tokens_details");
    this.cachedTokens = count(usage, "cache_read_input_tokens") ?? count(details, "cached_tokens") ?? this.cachedTokens;
  }

  private readWhole(): void {
    if (this.size > maxWhole) {
      return;
    }
    try {
      this.usage(member(JSON.parse(Buffer.concat(this.parts).toString()), "usage"));
    } catch {
      // An answer that is no JSON has no usage.
    }
  }
}

/** A member of an object; undefined when it has none. */
export function member(value: unknown, name: string): unknown {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>)[name] : undefined;
}

function count(value: unknown, name: string): number | undefined {
  const found = member(value, name);
  return Number.isInteger(found) ? (found as number) : undefined;
}
