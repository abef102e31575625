// Package breaker keeps requests away from replicas that fail them. One Breaker has a circuit for each replica: closed,
// open after too many failures, and half-open (on trial) once its pause has passed. It is safe for concurrent use.
package breaker
