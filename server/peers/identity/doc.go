// Package identity makes a router's identity from the key of its fleet: the key of the gossip, and TLS with certificates in
// both directions.
//
// All members derive the same authority from the key, so no certificate is distributed. Each process makes itself a certificate
// for its id, keeps it in memory and renews it; it accepts certificates of that authority only. A router that has the key
// may take any id: the fleet trusts the key.
//
// Clocks matter little: a certificate is valid from an hour before it was made. An Identity is safe for concurrent use.
package identity
