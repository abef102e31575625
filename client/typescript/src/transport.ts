import type { SecureContextOptions } from "node:tls";
import { Code, ConnectError, type Interceptor, type Transport } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";

/** How to reach the router. */
export interface ClientOptions {
  /** Sent as a bearer token with every call. */
  apiKey?: string;
  /** TLS: true takes Node's roots. Without it, and without https:// in the address, the connection is plain text. */
  tls?: boolean | TlsOptions;
  /** The deadline of each call but streams, in milliseconds; 30,000 when absent. */
  timeoutMs?: number;
  /** Headers of every call. */
  headers?: Record<string, string>;
}

/** Roots, a client certificate, and the name that the router's certificate must have. */
export type TlsOptions = Pick<SecureContextOptions, "ca" | "cert" | "key"> & { servername?: string };

/** Connection is a transport and the connection under it. */
export interface Connection {
  transport: Transport;
  close(): void;
}

// The calls that change nothing when they are repeated. ChooseReplica and inference are not among them.
const repeatable = new Set([
  "Tokenize",
  "Detokenize",
  "ReportReservation",
  "ExplainDecision",
  "ListDecisions",
  "ScoreOverlap",
  "GetLoads",
  "ListPrograms",
  "ListSplits",
  "SetSplitSide",
  "ListPolicies",
  "List",
  "Get",
  "Register",
  "Drain",
  "Undrain",
  "ListModels",
  "GetModel",
]);

const attempts = 4;
const firstBackoffMs = 50;
const maxBackoffMs = 1000;

/** connect prepares a connection to address: HOST:PORT, or a URL with http or https. It is made by the first call. */
export function connect(address: string, options: ClientOptions): Connection {
  const secure = options.tls !== undefined && options.tls !== false;
  const baseUrl = address.includes("://") ? address : `${secure ? "https" : "http"}://${address}`;
  if (secure && !baseUrl.startsWith("https:")) {
    throw new TypeError(`tls is set, so the address must begin with https://, not ${baseUrl}`);
  }
  const tls = typeof options.tls === "object" ? options.tls : {};
  const ping = { pingIntervalMs: 60_000, pingTimeoutMs: 20_000 };
  const sessionManager = new Http2SessionManager(baseUrl, ping, secure ? { ...tls } : undefined);
  const headers = new Headers(options.headers);
  if (options.apiKey !== undefined) {
    headers.set("authorization", `Bearer ${options.apiKey}`);
  }
  const transport = createGrpcTransport({ baseUrl, sessionManager, interceptors: [addHeaders(headers), retry] });
  return { transport, close: () => sessionManager.abort() };
}

function addHeaders(headers: Headers): Interceptor {
  return (next) => (request) => {
    headers.forEach((value, name) => {
      if (!request.header.has(name)) {
        request.header.set(name, value);
      }
    });
    return next(request);
  };
}

/** retry repeats what may be repeated while the router is unavailable. */
const retry: Interceptor = (next) => async (request) => {
  if (request.stream || !repeatable.has(request.method.name)) {
    return next(request);
  }
  for (let attempt = 1; ; attempt++) {
    try {
      return await next(request);
    } catch (e) {
      if (attempt === attempts || ConnectError.from(e).code !== Code.Unavailable || request.signal.aborted) {
        throw e;
      }
      const backoff = Math.min(firstBackoffMs * 3 ** (attempt - 1), maxBackoffMs);
      await sleep(backoff * (0.8 + 0.4 * Math.random()), request.signal);
    }
  }
};

function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", done);
  });
}
