// Package messages translates between Anthropic's Messages and OpenAI's chat as vLLM 0.33 does: the body of a request
// (Chat), and the events of a streamed answer (Stream).
//
// vLLM serves /v1/messages by its chat route: it makes a chat request of the message, and events of messages of the
// chunks of its answer. Here the same is done outside the engine, because chunks of chat have token ids and events of messages have not.
// Chat accepts a list of members and values: a request with any other one has no translation, and is left to the engine.
package messages
