// Package admin is the surface for operators: health, readiness, metrics, profiles, and the console with the RPCs that it reads.
//
// Handler serves it; its contents come through handlers that package server fills in.
// It changes nothing in the router. Where callers need credentials, each route asks for a role: observe for the console,
// admin for profiles; health, readiness and metrics are open unless the Config says otherwise.
package admin
