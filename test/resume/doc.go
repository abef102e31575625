// Package resume tests, with simulated replicas, that streams continue on another replica when theirs dies: at every place, to the letter.
package resume
