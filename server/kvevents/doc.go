// Package kvevents follows the KV cache event feeds of engines.
package kvevents
