// Package admin is the surface for operators: health, readiness, metrics, profiles, dumps and
// the console.
//
// Handler serves it; what it shows comes through small interfaces that package server fills in.
// It changes nothing in the router. Where callers need credentials, each route asks for a role: observe for the console,
// admin for profiles; health, readiness and metrics are open unless the Config says otherwise.
package admin
