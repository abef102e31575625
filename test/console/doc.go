// Package console opens the console in a headless Chromium and uses it as people do: with mouse
// and keyboard, wide and narrow, light and dark, before an empty router, a busy one and one that
// lost a replica. `make test-console` runs it. It is a module of its own for its library's sake, which the
// product does not need.
package console
