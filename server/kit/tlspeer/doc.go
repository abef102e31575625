// Package tlspeer is TLS towards replicas: which certificates the router trusts, which one it shows, and why a handshake
// failed, in words for operators. All clients of replicas share it.
package tlspeer
