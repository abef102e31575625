import type { MessageInitShape } from "@bufbuild/protobuf";
import { createClient, type Client as ServiceClient } from "@connectrpc/connect";
import type { ChatCompletion, ChatCompletionChunk, Completion, JsonBody } from "./bodies.js";
import { carrier, resumeHeader } from "./carry.js";
import { type CallOptions, Choice, type ChooseRequest, chooseRequest, encode, type Reporter, requestBody } from "./choice.js";
import { endOf, ReplicaError, toError } from "./errors.js";
import type { Decision } from "./gen/kvpilot/v1/decision_pb.js";
import { InferenceService } from "./gen/kvpilot/v1/inference_pb.js";
import type { TokenizeRequestSchema } from "./gen/kvpilot/v1/prompt_pb.js";
import { type Replica, ReplicaService, type WatchResponse } from "./gen/kvpilot/v1/replica_pb.js";
import { RoutingService, type WatchDecisionsResponse } from "./gen/kvpilot/v1/routing_pb.js";
import { decoded } from "./sse.js";
import { Tracker } from "./tracker.js";
import { type ClientOptions, type Connection, connect } from "./transport.js";

/** deadline starts now; what it returns says whether it has passed, but for the imprecision of timers. */
function deadline(timeoutMs = Infinity): () => boolean {
  const started = performance.now();
  return () => performance.now() - started >= timeoutMs - 10;
}

/** The inference routes that open, stream and complete take, by their REST paths. */
export const paths = {
  "/v1/chat/completions": "chatCompletions",
  "/v1/completions": "completions",
  "/v1/responses": "responses",
  "/v1/messages": "messages",
  "/v1/messages/count_tokens": "countMessageTokens",
  "/v1/embeddings": "embeddings",
  "/v1/rerank": "rerank",
  "/v1/score": "score",
  "/classify": "classify",
  "/pooling": "pooling",
  "/inference/v1/generate": "generate",
} as const;

/** One of the inference routes. */
export type Path = keyof typeof paths;

/** How streamDirect chooses, sends and reports. */
export interface DirectOptions extends CallOptions {
  /** What to choose by, besides the body: sessionId, requestId, deny and others. */
  choose?: Omit<ChooseRequest, "messages" | "text" | "tokenIds" | "body">;
  /** Chunks between two reports of progress; 16 when absent. */
  progressEvery?: number;
  /** Ties the reservation to this tracker's stream. */
  tracker?: Tracker;
  /** Replaces the global fetch. */
  fetch?: typeof fetch;
}

/**
 * A connection to a router at HOST:PORT, or at a URL; it is made by the first call. Close it when done. Of several addresses the first is
 * used for all calls, and the others for streams whose router is gone.
 *
 * Lifecycle reports, tokenizing and reads are retried while the router is unavailable; choosing and inference are not. Errors
 * are KvpilotError and its kinds; a call whose signal was aborted throws the signal's reason.
 */
export class Client {
  /** The generated clients, for what has no method here. They throw ConnectError. */
  readonly routing: ServiceClient<typeof RoutingService>;
  readonly inference: ServiceClient<typeof InferenceService>;
  readonly replicas: ServiceClient<typeof ReplicaService>;
  private readonly connections: Connection[];
  private readonly routers: ServiceClient<typeof InferenceService>[];
  private readonly timeoutMs: number;
  private closed = false;

  constructor(address: string | readonly string[], options: ClientOptions = {}) {
    this.connections = [address].flat().map((one) => connect(one, options));
    const first = this.connections[0];
    if (first === undefined) {
      throw new TypeError("an address is missing");
    }
    this.timeoutMs = options.timeoutMs ?? 30_000;
    this.routing = createClient(RoutingService, first.transport);
    this.routers = this.connections.map(({ transport }) => createClient(InferenceService, transport));
    this.inference = createClient(InferenceService, first.transport);
    this.replicas = createClient(ReplicaService, first.transport);
  }

  /** Ends the connection and all calls on it. */
  close(): void {
    this.closed = true;
    for (const connection of this.connections) {
      connection.close();
    }
  }

  private async call<T>(rpc: (options: CallOptions) => Promise<T>, options: CallOptions = {}): Promise<T> {
    options.signal?.throwIfAborted();
    const timeoutMs = options.timeoutMs ?? this.timeoutMs;
    const late = deadline(timeoutMs);
    try {
      return await rpc({ ...options, timeoutMs });
    } catch (e) {
      throw toError(e, options.signal, late());
    }
  }

  /** Chooses a replica and books the load there, unless booking says otherwise. Release the choice, or use it with run. */
  async choose(request: ChooseRequest, options?: CallOptions): Promise<Choice> {
    const message = chooseRequest(request);
    return new Choice(await this.call((o) => this.routing.chooseReplica(message, o), options), this.unary);
  }

  /** Opens a stream that carries the reports of many choices, and whose end releases them. */
  track(options: Pick<CallOptions, "headers"> = {}): Tracker {
    return new Tracker(this.routing, (request, o) => this.choose(request, o), options.headers);
  }

  private readonly unary: Reporter = {
    report: async (r, options) => void (await this.call((o) => this.routing.reportReservation(r, o), options)),
  };

  /** The ids that the model's replicas use for a plain prompt, or for a request with its chat template. */
  async tokenize(
    model: string,
    input: { text: string } | { messages: readonly object[] } | { body: JsonBody },
    options?: CallOptions,
  ): Promise<number[]> {
    const request: MessageInitShape<typeof TokenizeRequestSchema> = { model };
    if ("text" in input) {
      request.input = { case: "text", value: input.text };
    } else {
      request.input = { case: "body", value: requestBody("body" in input ? input.body : { model, messages: input.messages }) };
    }
    const { sequences } = await this.call((o) => this.routing.tokenize(request, o), options);
    return sequences[0]?.tokenIds?.ids ?? [];
  }

  /** The text of ids. */
  async detokenize(model: string, ids: readonly number[], options?: CallOptions): Promise<string> {
    const { texts } = await this.call((o) => this.routing.detokenize({ model, sequences: [{ ids: [...ids] }] }, o), options);
    return texts[0] ?? "";
  }

  /** The recorded decisions of a request, first attempt first. */
  async explain(key: { decisionId: string } | { requestId: string }, options?: CallOptions): Promise<Decision[]> {
    const named =
      "decisionId" in key
        ? { case: "decisionId" as const, value: key.decisionId }
        : { case: "requestId" as const, value: key.requestId };
    return (await this.call((o) => this.routing.explainDecision({ key: named }, o), options)).decisions;
  }

  /** The replicas that serve model; all of them when it is absent. */
  async listReplicas(model = "", options?: CallOptions): Promise<Replica[]> {
    const found: Replica[] = [];
    for (let pageToken = ""; ; ) {
      const page = await this.call((o) => this.replicas.list({ model, pageToken }, o), options);
      found.push(...page.replicas);
      if (page.nextPageToken === "") {
        return found;
      }
      pageToken = page.nextPageToken;
    }
  }

  /** Yields every replica and then each change, until the loop is left, the signal is aborted or the connection breaks. */
  watchReplicas(model = "", options: CallOptions = {}): AsyncGenerator<WatchResponse, void, undefined> {
    return this.streamed((o) => this.replicas.watch({ model }, o), options);
  }

  /**
   * Yields decisions as they are made and again with their outcome, under the rules of watchReplicas. A reader that is too slow
   * loses some and gets their number.
   */
  watchDecisions(
    filter: { model?: string; replicaId?: string; onlyChosen?: boolean } = {},
    options: CallOptions = {},
  ): AsyncGenerator<WatchDecisionsResponse, void, undefined> {
    return this.streamed((o) => this.routing.watchDecisions(filter, o), options);
  }

  /** streamed yields the messages of a call that ends, at the router too, when the loop is left. */
  private async *streamed<T>(
    open: (options: CallOptions) => AsyncIterable<T>,
    options: CallOptions,
  ): AsyncGenerator<T, void, undefined> {
    options.signal?.throwIfAborted();
    const left = new AbortController();
    const signal = options.signal ? AbortSignal.any([options.signal, left.signal]) : left.signal;
    const late = deadline(options.timeoutMs);
    try {
      for await (const message of open({ ...options, signal })) {
        yield message;
      }
    } catch (e) {
      throw toError(e, options.signal, late());
    } finally {
      left.abort();
    }
  }

  /**
   * Has the router answer on an inference route and yields the replica's bytes as they come. Leaving the loop stops the replica's work.
   *
   * A stream whose router stops or dies is continued by the next one, wherever that is possible exactly: then what comes are whole events.
   * The header x-kvpilot-resume, with any value, turns that off.
   */
  async *open(path: Path, body: JsonBody, options: CallOptions = {}): AsyncGenerator<Uint8Array, void, undefined> {
    const name = paths[path];
    if (name === undefined) {
      throw new TypeError(`path ${path} must be one of ${Object.keys(paths).join(", ")}`);
    }
    let data = encode(body);
    let how = "carry";
    let carried = carrier(path, data, options.headers);
    for (let turn = 0; ; turn++) {
      const router = this.routers[turn % this.routers.length] as ServiceClient<typeof InferenceService>;
      const request = { contentType: "application/json", data };
      const asks = carried ? { ...options, headers: { ...options.headers, [resumeHeader]: how } } : options;
      try {
        for await (const part of this.streamed((o) => router[name](request, o), asks)) {
          if (part.contentType !== "" && !part.contentType.startsWith("text/event-stream")) {
            carried = undefined;
          }
          const got = carried ? carried.feed(part.data) : part.data;
          if (!carried || got.length > 0) {
            yield got;
          }
        }
        return;
      } catch (e) {
        if (this.closed || !carried?.lost(e)) {
          throw e;
        }
        if (carried.over) {
          return;
        }
      }
      await new Promise((resolve) => setTimeout(resolve, carried?.pauseMs));
      ({ body: data, how } = carried.request());
    }
  }

  /** Like open, for a body with `stream: true`; yields the events, decoded. */
  stream<T extends object>(path: Path, body: JsonBody, options?: CallOptions): AsyncGenerator<T, void, undefined> {
    return decoded<T>(this.open(path, body, options));
  }

  /** Like open, for a body that is not streamed; returns the whole answer, decoded. */
  async complete<T>(path: Path, body: JsonBody, options: CallOptions = {}): Promise<T> {
    const decoder = new TextDecoder();
    let answer = "";
    for await (const part of this.open(path, body, { timeoutMs: this.timeoutMs, ...options })) {
      answer += decoder.decode(part, { stream: true });
    }
    return JSON.parse(answer) as T;
  }

  /** A chat completion through the router. */
  chat(body: object, options?: CallOptions): Promise<ChatCompletion> {
    return this.complete("/v1/chat/completions", { ...body, stream: false }, options);
  }

  /** A streamed chat completion through the router. */
  chatStream(body: object, options?: CallOptions): AsyncGenerator<ChatCompletionChunk, void, undefined> {
    return this.stream("/v1/chat/completions", { ...body, stream: true }, options);
  }

  /** A completion through the router. */
  completion(body: object, options?: CallOptions): Promise<Completion> {
    return this.complete("/v1/completions", { ...body, stream: false }, options);
  }

  /** A streamed completion through the router. */
  completionStream(body: object, options?: CallOptions): AsyncGenerator<Completion, void, undefined> {
    return this.stream("/v1/completions", { ...body, stream: true }, options);
  }

  /**
   * Chooses a replica, streams a chat completion from it with fetch and reports the lifecycle. Leaving the loop stops the replica
   * and releases as canceled. An error of the replica is a ReplicaError. A report that fails does not fail the answer.
   */
  async *streamDirect(
    body: Record<string, unknown>,
    options: DirectOptions = {},
  ): AsyncGenerator<ChatCompletionChunk, void, undefined> {
    const asked = {
      ...body,
      stream: true,
      stream_options: { include_usage: true, ...(body.stream_options as object | undefined) },
    };
    const { choose = {}, progressEvery, tracker = this, fetch: send = fetch, signal: outer, headers = {}, timeoutMs } = options;
    const call: CallOptions = { headers, ...(outer && { signal: outer }), ...(timeoutMs !== undefined && { timeoutMs }) };
    const choice = await tracker.choose({ ...choose, body: asked } as ChooseRequest, call);
    const left = new AbortController();
    const signal = outer ? AbortSignal.any([outer, left.signal]) : left.signal;
    try {
      const answer = await send(`${choice.url}/v1/chat/completions`, {
        method: "POST",
        headers: { "content-type": "application/json", ...headers, ...choice.requestHeaders },
        body: JSON.stringify(choice.bodyFor(asked)),
        signal,
      });
      if (!answer.ok || !answer.body) {
        throw new ReplicaError(answer.status, await answer.text());
      }
      yield* choice.follow(decoded<ChatCompletionChunk>(answer.body), {
        ...(progressEvery !== undefined && { progressEvery }),
        ...(outer && { signal: outer }),
      });
    } catch (e) {
      await choice.leave(endOf(e, outer?.aborted));
      throw e;
    } finally {
      left.abort();
    }
  }
}
