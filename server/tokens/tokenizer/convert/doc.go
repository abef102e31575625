// Package convert writes the chat request that an engine makes of a request in another format
// before it renders it: Anthropic's Messages and OpenAI's Responses.
//
// Chat returns a prompt in chat form where the mapping is exact and says so when it is not: a
// wrong guess would name wrong KV blocks. The results have no Body; their messages and fields
// have the form that the tokenizer's routes take. All functions are pure.
package convert
