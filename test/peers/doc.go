// Package peers tests how the router's clients speak with replicas that want TLS, client certificates and keys.
package peers
