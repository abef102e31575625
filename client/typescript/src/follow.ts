import { type Duration, durationMs } from "@bufbuild/protobuf/wkt";
import type { CallOptions } from "./choice.js";
import { endOf } from "./errors.js";
import type { ReleaseReason } from "./gen/kvpilot/v1/reservation_pb.js";
import { member, progressEveryDefault, Reading } from "./reading.js";

/** How Choice.follow reports. */
export interface FollowOptions {
  /** Chunks between two reports of progress; 16 when absent. */
  progressEvery?: number;
  /** The signal that the request was sent with: a stream that breaks after it was aborted is canceled, not failed. */
  signal?: AbortSignal;
}

/** What a followed stream reports. Choice implements it. */
export interface Lifecycle {
  readonly booked: boolean;
  readonly response: { readonly lease?: Duration | undefined };
  prefillDone(options?: CallOptions): Promise<void>;
  progress(outputTokens: number, options?: CallOptions): Promise<void>;
  renew(options?: CallOptions): Promise<void>;
  /** Releases, once. It does not reject. */
  leave(end: ReleaseReason): Promise<void>;
}

/** How long a report of a followed stream, and its release, wait for the router, retries included. */
export const reportTimeoutMs = 5000;

/** Reports what is read of an answer, in the background. */
class Reports {
  waiting = false; // for the replica
  private readonly sent = new Set<Promise<void>>();
  private readonly timer: NodeJS.Timeout | undefined;
  private ending: Promise<void> | undefined;
  private first = false;
  private ticked = 0; // the chunks at the last tick

  constructor(
    private readonly choice: Lifecycle,
    readonly reading: Reading,
  ) {
    if (choice.booked) {
      const { lease } = choice.response;
      // A third of the lease, of which the shortest is 100 ms. It does not keep the process alive: the stream does.
      this.timer = setInterval(() => this.tick(), Math.max(lease ? durationMs(lease) : 0, 100) / 3).unref();
    }
  }

  observe(chunk: unknown): void {
    const { reading } = this;
    reading.feed(chunk);
    const tokens = reading.due();
    if (reading.begun && !this.first) {
      this.first = true;
      this.send((o) => this.choice.prefillDone(o));
    } else if (tokens !== undefined) {
      this.send((o) => this.choice.progress(tokens, o));
    }
    if (reading.complete) {
      void this.end(reading.left()); // a reader may leave now without return
    }
  }

  /** end releases, after what was sent; only the first end counts. */
  end(end: ReleaseReason): Promise<void> {
    this.ending ??= this.finish(end);
    return this.ending;
  }

  private async finish(end: ReleaseReason): Promise<void> {
    clearInterval(this.timer);
    await Promise.all(this.sent);
    await this.choice.leave(end);
  }

  // Renews the lease, but not of a stream that its reader has left unread.
  private tick(): void {
    if (this.waiting || this.reading.chunks !== this.ticked) {
      this.ticked = this.reading.chunks;
      this.send((o) => this.choice.renew(o));
    }
  }

  // A report that fails does not fail the answer.
  private send(report: (options: CallOptions) => Promise<void>): void {
    if (this.ending === undefined) {
      const sent = report({ timeoutMs: reportTimeoutMs }).catch(() => {});
      this.sent.add(sent);
      void sent.finally(() => this.sent.delete(sent));
    }
  }
}

// Ends the requests whose Followed was dropped without return. What is held for it must not refer to it.
const dropped = new FinalizationRegistry<{ reports: Reports; sources: object[] }>(({ reports, sources }) => {
  void reports.end(reports.reading.left());
  void close(sources);
});

/**
 * The chunks of an answer, whose lifecycle is reported as they are read. Choice.follow makes it; one loop reads it. Leaving a
 * `for await` loop calls return, which ends the request as canceled, unless it has ended, and closes the stream.
 */
export class Followed<T> implements AsyncIterableIterator<T, undefined>, AsyncDisposable {
  private readonly iterator: AsyncIterator<T>;
  private readonly sources: object[];
  private readonly reports: Reports;
  private over = false;

  /** Streams that are followed come from Choice.follow. */
  constructor(
    choice: Lifecycle,
    reading: Reading,
    chunks: AsyncIterable<T>,
    private readonly signal: AbortSignal | undefined,
  ) {
    this.iterator = chunks[Symbol.asyncIterator]();
    this.sources = [chunks, this.iterator];
    this.reports = new Reports(choice, reading);
    dropped.register(this, { reports: this.reports, sources: this.sources }, this);
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<T, undefined>> {
    if (this.over) {
      return { done: true, value: undefined };
    }
    const { reports } = this;
    reports.waiting = true;
    let next: IteratorResult<T>;
    try {
      next = await this.iterator.next();
    } catch (e) {
      await this.end(endOf(e, this.signal?.aborted));
      throw e;
    } finally {
      reports.waiting = false;
    }
    if (next.done) {
      // The SDKs end a stream that was aborted without an error; after an error they abort it themselves.
      const aborted = this.signal?.aborted || controller(this.sources[0])?.signal.aborted;
      await this.end(aborted ? reports.reading.left() : reports.reading.ended());
      return { done: true, value: undefined };
    }
    reports.observe(next.value);
    return next;
  }

  /** Ends the request as canceled, unless it has ended, and closes the stream. It may be called twice. */
  async return(): Promise<IteratorResult<T, undefined>> {
    if (!this.over) {
      const ending = this.end(this.reports.reading.left());
      await close(this.sources);
      await ending;
    }
    return { done: true, value: undefined };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.return();
  }

  private end(end: ReleaseReason): Promise<void> {
    this.over = true;
    dropped.unregister(this);
    return this.reports.end(end);
  }
}

/** followed reads chunks, a stream or a Response of fetch, for choice. */
export function followed<T>(
  choice: Lifecycle,
  chunks: AsyncIterable<T> | Response,
  options: FollowOptions,
): [Reading, Followed<T>] {
  const answer = Symbol.asyncIterator in chunks ? undefined : chunks;
  const reading = new Reading({
    progressEvery: options.progressEvery ?? progressEveryDefault,
    status: answer?.status ?? 200,
    whole: answer?.headers.get("content-type")?.startsWith("application/json") ?? false,
  });
  const stream = (answer ? (answer.body ?? none()) : chunks) as AsyncIterable<T>;
  return [reading, new Followed(choice, reading, stream, options.signal)];
}

async function* none(): AsyncGenerator<never, void, undefined> {}

/** The controller of a stream of OpenAI's or Anthropic's SDK, which stops its request. */
function controller(stream: unknown): AbortController | undefined {
  const found = member(stream, "controller");
  return found instanceof AbortController ? found : undefined;
}

// Stops the request behind a stream first: an iterator's return waits for a chunk that is being waited for.
async function close([stream, iterator]: object[]): Promise<void> {
  controller(stream)?.abort();
  try {
    await (iterator as AsyncIterator<unknown>).return?.();
  } catch {
    // The reader has left; what closing says concerns no one.
  }
}
