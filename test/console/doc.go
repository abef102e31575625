// Package console opens the console in a headless Chromium and uses it as people do: with mouse
// and keyboard, wide and narrow, light and dark, before an empty router, a busy one and one that
// lost a replica. `make test-console` runs it: its library lives in a go.mod of its own
// (console.mod), so that the product's does not grow.
package console
