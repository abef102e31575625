GO ?= go

.PHONY: help build test
help: ## list the targets
	@grep -hE '^[a-z][a-z0-9-]*:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | sort | expand -t 24

build: ## build the static binary into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -tags grpcnotrace -ldflags='-s -w' -o bin/kvpilot ./cmd/kvpilot

test: ## run all tests with the race detector
	$(GO) test -race -timeout 600s ./...
