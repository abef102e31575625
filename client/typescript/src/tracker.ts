import type { Client as ServiceClient } from "@connectrpc/connect";
import { type CallOptions, Choice, type ChooseRequest, type Report, type Reporter } from "./choice.js";
import { reportError, TrackerClosedError, toError } from "./errors.js";
import { ErrorReason } from "./gen/kvpilot/v1/errors_pb.js";
import { ReleaseReason, type TrackReservationResponse } from "./gen/kvpilot/v1/reservation_pb.js";
import type { RoutingService } from "./gen/kvpilot/v1/routing_pb.js";

interface Waiting {
  resolve(): void;
  reject(e: unknown): void;
}

// How long close waits for the router to end the stream too.
const closeWaitMs = 2000;

/**
 * Carries the reports of many choices over one stream. Its choices live as long as the stream: when this process dies, the
 * router releases them at once instead of waiting for their leases. After the stream has ended, open another Tracker.
 */
export class Tracker implements Reporter {
  private readonly queue: Report[] = [];
  private readonly waiting = new Map<bigint, Waiting>();
  private readonly controller = new AbortController();
  private readonly received: Promise<void>;
  private wake = () => {};
  private sequence = 0n;
  private closing = false;
  private ended: TrackerClosedError | undefined;

  /** Trackers come from Client.track. */
  constructor(
    routing: ServiceClient<typeof RoutingService>,
    private readonly chooseWith: (request: ChooseRequest, options?: CallOptions) => Promise<Choice>,
    headers: Record<string, string> = {},
  ) {
    this.received = this.receive(routing.trackReservation(this.requests(), { signal: this.controller.signal, headers }));
  }

  /** Chooses as Client.choose does and ties the reservation to this stream. */
  async choose(request: ChooseRequest, options?: CallOptions): Promise<Choice> {
    if (this.ended) {
      throw this.ended;
    }
    const choice = await this.chooseWith(request, options);
    if (!choice.booked) {
      return choice;
    }
    try {
      const { reservationId, attempt } = choice.response;
      await this.report({ reservationId, attempt, event: { case: "bind", value: {} } }, options);
    } catch (e) {
      await choice.release(ReleaseReason.CANCELED, {}, { timeoutMs: closeWaitMs }).catch(() => {});
      throw e;
    }
    return new Choice(choice.response, this);
  }

  /** Ends the stream; the router releases what was chosen over it and not yet released. */
  async close(): Promise<void> {
    this.closing = true;
    this.wake();
    const timer = setTimeout(() => this.controller.abort(), closeWaitMs);
    await this.received;
    clearTimeout(timer);
  }

  /** Sends one report and waits for its answer. An aborted wait does not take the report back. */
  report(report: Report, options: CallOptions = {}): Promise<void> {
    if (this.ended || this.closing) {
      return Promise.reject(this.ended ?? new TrackerClosedError("the tracker is closed"));
    }
    if (options.signal?.aborted) {
      return Promise.reject(options.signal.reason);
    }
    const sequence = ++this.sequence;
    return new Promise((resolve, reject) => {
      const signals = [options.signal, options.timeoutMs === undefined ? undefined : AbortSignal.timeout(options.timeoutMs)];
      const signal = AbortSignal.any(signals.filter((s) => s !== undefined));
      const abort = () => settle(() => reject(signal.reason));
      const settle = (then: () => void) => {
        signal.removeEventListener("abort", abort);
        this.waiting.delete(sequence);
        then();
      };
      signal.addEventListener("abort", abort);
      this.waiting.set(sequence, { resolve: () => settle(resolve), reject: (e) => settle(() => reject(e)) });
      this.queue.push({ ...report, sequence });
      this.wake();
    });
  }

  private async *requests(): AsyncGenerator<Report, void, undefined> {
    for (;;) {
      const next = this.queue.shift();
      if (next) {
        yield next;
      } else if (this.closing) {
        return;
      } else {
        await new Promise<void>((resolve) => {
          this.wake = resolve;
        });
      }
    }
  }

  private async receive(responses: AsyncIterable<TrackReservationResponse>): Promise<void> {
    let cause: unknown;
    try {
      for await (const { sequence, reason, message } of responses) {
        const waiting = this.waiting.get(sequence);
        if (reason === ErrorReason.UNSPECIFIED) {
          waiting?.resolve();
        } else {
          waiting?.reject(reportError(reason, message));
        }
      }
    } catch (e) {
      cause = toError(e);
    }
    const why = cause instanceof Error ? `: ${cause.message}` : "";
    this.ended = new TrackerClosedError(`the tracker's stream has ended${why}`, { cause });
    this.closing = true;
    this.wake();
    for (const waiting of [...this.waiting.values()]) {
      waiting.reject(this.ended);
    }
  }
}
