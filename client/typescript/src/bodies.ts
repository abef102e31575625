/** A request body: an object, or its JSON as text or bytes, which is sent unchanged. */
export type JsonBody = Uint8Array | string | object;

/** Token counts of an answer. */
export interface Usage {
  prompt_tokens: number;
  completion_tokens?: number;
  total_tokens: number;
  prompt_tokens_details?: { cached_tokens?: number } | null;
}

/** What every answer and chunk has. Engines add members; they are kept. */
export interface Envelope {
  id: string;
  object: string;
  created: number;
  model: string;
  usage?: Usage | null;
  [member: string]: unknown;
}

/** Part of a tool call, as a stream brings it. */
export interface ToolCallDelta {
  index: number;
  id?: string;
  type?: string;
  function?: { name?: string; arguments?: string };
}

/** One event of a streamed chat completion. */
export interface ChatCompletionChunk extends Envelope {
  choices: {
    index: number;
    delta: { role?: string; content?: string | null; reasoning_content?: string | null; tool_calls?: ToolCallDelta[] };
    finish_reason?: string | null;
  }[];
}

/** A whole chat completion. */
export interface ChatCompletion extends Envelope {
  choices: {
    index: number;
    message: {
      role: string;
      content: string | null;
      reasoning_content?: string | null;
      tool_calls?: { id: string; type: string; function: { name: string; arguments: string } }[];
    };
    finish_reason: string | null;
  }[];
}

/** A whole completion, or one event of a streamed one. */
export interface Completion extends Envelope {
  choices: { index: number; text: string; finish_reason?: string | null }[];
}
