package vllm

var ErrPayload = errPayload
