// Package directory asks a service outside the router where the beginning of a prompt lies below the engines' GPUs: the coordinator of LMCache's
// servers, or Mooncake's conductor.
//
// Directory.Find waits for an answer for no longer than the settings allow, and never fails: without a usable answer nothing is held, and the result says
// why. After several consecutive failures the service is not asked for a while. A protocol turns a question into the service's JSON and its JSON into
// Held; it reads nothing else. The answers are hints: package chooser prices them, and learns whether engines
// find the blocks. Answers about GPUs are not read, because the index knows these exactly.
//
// A Directory is safe for concurrent use. Run closes its connections.
package directory
