// Package admin is the surface for operators: health, readiness, metrics, profiles, dumps and
// the console.
//
// Handler serves it; what it shows comes through small interfaces that package server fills in.
// It changes nothing in the router. With API keys configured, everything but health, readiness
// and metrics asks for one.
package admin
