import type { MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import type { JsonBody } from "./bodies.js";
import { endOf } from "./errors.js";
import { type Followed, type FollowOptions, followed, reportTimeoutMs } from "./follow.js";
import type { RequestBodySchema } from "./gen/kvpilot/v1/prompt_pb.js";
import { ReleaseReason, type ReservationReportSchema } from "./gen/kvpilot/v1/reservation_pb.js";
import { Booking, type ChooseReplicaRequestSchema, type ChooseReplicaResponse, Reports } from "./gen/kvpilot/v1/routing_pb.js";
import type { Reading } from "./reading.js";

/** The deadline and the headers of one call, and a signal that cancels it. */
export interface CallOptions {
  signal?: AbortSignal;
  /** The deadline in milliseconds. Streams have none when it is absent, other calls that of the client. */
  timeoutMs?: number;
  /** x-session-id, x-request-id, x-kvpilot-policy and others. */
  headers?: Record<string, string>;
}

/** The prompt of a request: one of these. With tokenIds: [] load alone decides. */
export type Prompt =
  | { messages: readonly object[]; text?: never; tokenIds?: never; body?: never }
  | { text: string; messages?: never; tokenIds?: never; body?: never }
  | { tokenIds: readonly number[]; messages?: never; text?: never; body?: never }
  | { body: JsonBody; messages?: never; text?: never; tokenIds?: never };

/** A request that is about to be sent. */
export type ChooseRequest = Prompt & {
  /** The model as clients name it; may be absent when body names it or the router serves one only. */
  model?: string;
  /** The LoRA adapter. */
  adapter?: string;
  sessionId?: string;
  /** Another policy for this request, and its parameters. */
  policy?: string;
  params?: Record<string, number>;
  /** Only these replicas, not these, this one and no other. */
  allow?: readonly string[];
  deny?: readonly string[];
  pin?: string;
  /** From -1,000 to 1,000. */
  priority?: number;
  /** The longest acceptable time to the first token; the call fails at once when no replica can keep it. */
  ttftDeadlineMs?: number;
  expectedOutputTokens?: number;
  cacheSalt?: string;
  /** How long the booking lives without a report. */
  leaseMs?: number;
  requestId?: string;
  /** What is booked; the load, when absent. */
  booking?: Booking;
  /** Add the whole decision to the response. */
  explain?: boolean;
  /** Add the prompt's token ids to the response. */
  returnTokenIds?: boolean;
  /** prefillDone will always be reported: the prefill counts until then. */
  reportsAll?: boolean;
};

/** The part of a request's end that only its caller has seen; an empty object: nothing more is known than the reason. */
export interface Result {
  /** Absent: as progress reported last. */
  outputTokens?: number;
  /** Tokens of the prompt that the engine says it had cached. The router compares it with its prediction. */
  cachedTokens?: number;
  /** The replica that served, when it was not the chosen one. */
  servedBy?: string;
}

/** A report about a reservation. */
export type Report = MessageInitShape<typeof ReservationReportSchema>;

/** Reporter carries reports: call by call, or over a stream. */
export interface Reporter {
  report(report: Report, options?: CallOptions): Promise<void>;
}

/**
 * A decision and, when it was booked, its reservation.
 *
 * Send the request to `url` with `requestHeaders` and `bodyFor(body)`; read the answer through `follow`, or report the first token
 * and progress and release it at the end, whatever the end is; `run` releases by how it ends. Reports are idempotent. On a choice that was not booked (a dry run) they do
 * nothing.
 */
export class Choice {
  private released = false;
  private result: Result & { reason?: ReleaseReason } = {};
  private leaving: Promise<void> | undefined;
  private reading: Reading | undefined; // of the stream that is followed

  /** Choices come from Client.choose and Tracker.choose. */
  constructor(
    readonly response: ChooseReplicaResponse,
    private readonly reporter: Reporter,
  ) {}

  get booked(): boolean {
    return this.response.reservationId !== "";
  }

  /** The replica's base URL, without a slash at its end. */
  get url(): string {
    return this.response.url.replace(/\/+$/, "");
  }

  get replicaId(): string {
    return this.response.replicaId;
  }

  /** Headers to add to the request that goes to the replica. */
  get requestHeaders(): Record<string, string> {
    return this.response.requestHeaders;
  }

  private async report(event: NonNullable<Report["event"]>, options?: CallOptions): Promise<void> {
    if (this.booked) {
      const { reservationId, attempt } = this.response;
      await this.reporter.report({ reservationId, attempt, event }, options);
    }
  }

  /** The body as the replica must get it: its own name of the model, and the cache_salt of the prediction. */
  bodyFor<T extends object>(body: T): T {
    const { model, cacheSalt } = this.response;
    return { ...body, ...(model && { model }), ...(cacheSalt && { cache_salt: cacheSalt }) };
  }

  /**
   * Options for `new OpenAI(...)`, so that it sends to the chosen replica. It does not retry: a retry is another choice.
   * apiKey is the engines' own.
   */
  openAIOptions(apiKey = "none"): { baseURL: string; apiKey: string; defaultHeaders: Record<string, string>; maxRetries: number } {
    return { baseURL: `${this.url}/v1`, apiKey, defaultHeaders: this.requestHeaders, maxRetries: 0 };
  }

  /** Reports the first token. */
  prefillDone(options?: CallOptions): Promise<void> {
    return this.report({ case: "firstToken", value: {} }, options);
  }

  /** Reports the tokens produced since the start, and renews the lease. */
  progress(outputTokens: number, options?: CallOptions): Promise<void> {
    return this.report({ case: "progress", value: { outputTokens } }, options);
  }

  /** Extends the lease of a request that still waits for its first token. */
  renew(options?: CallOptions): Promise<void> {
    return this.report({ case: "renew", value: {} }, options);
  }

  /** Sets what the release at the end of run or of a followed stream says, in place of what they say of themselves. */
  outcome(result: Result & { reason?: ReleaseReason }): void {
    this.result = { ...this.result, ...result };
  }

  /** Ends the reservation; only the first release counts. */
  async release(reason: ReleaseReason, result: Result = {}, options?: CallOptions): Promise<void> {
    if (!this.booked || this.released) {
      return;
    }
    this.outcome(result);
    await this.report({ case: "release", value: { ...this.read(), ...this.result, reason } }, options);
    this.released = true;
  }

  /**
   * Yields the chunks of the replica's answer and reports the lifecycle by what they say.
   *
   * chunks: a stream of the OpenAI SDK, a Response of fetch, or any async iterable of bytes of server-sent events, decoded events
   * or tokens. The first token, progress, usage and the end are reported; the lease is renewed while the replica is waited for.
   * Reports are sent in the background, and one that fails does not fail the answer; the end waits for the router, 5 s at most.
   *
   * The request ends as completed when the stream says so or runs out; as failed when it breaks, ends in mid-answer or brings an
   * error event; as rejected for a 4xx; as canceled when it is aborted or its reader leaves it: by `break` or an exception in
   * `for await`, by return, or by dropping it. Leaving it closes chunks too. A choice is followed once.
   */
  follow(chunks: Response, options?: FollowOptions): Followed<Uint8Array>;
  follow<T>(chunks: AsyncIterable<T>, options?: FollowOptions): Followed<T>;
  follow<T>(chunks: AsyncIterable<T> | Response, options: FollowOptions = {}): Followed<T> {
    if (this.reading) {
      throw new Error("the choice is followed already");
    }
    const [reading, stream] = followed<T>(this, chunks, options);
    this.reading = reading;
    return stream;
  }

  /**
   * Calls use, then releases: as completed; as failed when use throws; as rejected when it throws a replica's own 4xx; as canceled
   * when it throws an AbortError; and when a stream is followed, as that has ended. A release that fails changes nothing of what
   * use returned: the lease ends the booking.
   */
  async run<T>(use: (choice: this) => Promise<T>): Promise<T> {
    let end = ReleaseReason.COMPLETED;
    try {
      return await use(this);
    } catch (e) {
      end = endOf(e);
      throw e;
    } finally {
      // What a followed stream itself throws has ended it already: this error is the reader's.
      await this.leave(this.reading?.left() ?? end);
    }
  }

  /** @internal Releases once, with end unless outcome has set another. It does not reject: the lease ends what is not released. */
  leave(end: ReleaseReason): Promise<void> {
    this.leaving ??= this.release(this.result.reason ?? end, {}, { timeoutMs: reportTimeoutMs }).catch(() => {});
    return this.leaving;
  }

  /** What the followed stream has said of its tokens. */
  private read(): Result {
    const { tokens: outputTokens, cachedTokens } = this.reading ?? {};
    return { ...(outputTokens !== undefined && { outputTokens }), ...(cachedTokens !== undefined && { cachedTokens }) };
  }
}

const prompts = ["messages", "text", "tokenIds", "body"] as const;

/** onePrompt throws unless a request has one prompt: JavaScript has no types that say so. */
function onePrompt(r: ChooseRequest): void {
  const given = prompts.filter((name) => r[name] !== undefined);
  if (given.length !== 1) {
    const got = given.length > 1 ? `not ${given.join(" and ")}` : "the prompt is missing (tokenIds: [] chooses by load alone)";
    throw new TypeError(`give one of ${prompts.join(", ")}: ${got}`);
  }
}

/** chooseRequest is the message of a request. */
export function chooseRequest(r: ChooseRequest): MessageInitShape<typeof ChooseReplicaRequestSchema> {
  onePrompt(r);
  const message: MessageInitShape<typeof ChooseReplicaRequestSchema> = {
    model: r.model ?? "",
    adapter: r.adapter ?? "",
    sessionId: r.sessionId ?? "",
    priority: r.priority ?? 0,
    expectedOutputTokens: r.expectedOutputTokens ?? 0,
    cacheSalt: r.cacheSalt ?? "",
    requestId: r.requestId ?? "",
    booking: r.booking ?? Booking.RESERVE,
    explain: r.explain ?? false,
    returnTokenIds: r.returnTokenIds ?? false,
    reports: r.reportsAll ? Reports.ALL : Reports.UNSPECIFIED,
    candidates: { allow: [...(r.allow ?? [])], deny: [...(r.deny ?? [])], pin: r.pin ?? "" },
  };
  const body = r.messages === undefined ? r.body : { ...(r.model && { model: r.model }), messages: r.messages };
  if (body !== undefined) {
    message.prompt = { case: "body", value: requestBody(body) };
  } else if (r.text !== undefined) {
    message.prompt = { case: "text", value: r.text };
  } else if (r.tokenIds?.length) {
    message.prompt = { case: "tokenIds", value: { ids: [...r.tokenIds] } };
  }
  if (r.policy !== undefined || r.params !== undefined) {
    message.policy = { name: r.policy ?? "", params: r.params ?? {} };
  }
  if (r.ttftDeadlineMs !== undefined) {
    message.ttftDeadline = durationFromMs(r.ttftDeadlineMs);
  }
  if (r.leaseMs !== undefined) {
    message.lease = durationFromMs(r.leaseMs);
  }
  return message;
}

/** requestBody is the message of a JSON body. */
export function requestBody(body: JsonBody): MessageInitShape<typeof RequestBodySchema> {
  return { json: encode(body) };
}

/** encode returns the bytes of a JSON body; what is encoded already stays as it is. */
export function encode(body: JsonBody): Uint8Array<ArrayBuffer> {
  if (body instanceof Uint8Array) {
    return Uint8Array.from(body);
  }
  return new TextEncoder().encode(typeof body === "string" ? body : JSON.stringify(body));
}
