// Package fleet tests several whole routers in front of the same replicas.
package fleet
