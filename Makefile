# edge inbox. `make help` lists the targets. Go 1.26 and make are all it needs;
# `make race` needs a C compiler too (the race detector does).

export CGO_ENABLED = 0
export GOTOOLCHAIN ?= local

STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2
PACKAGES    = ./... ./testdata/github
PLATFORMS   = linux/amd64 linux/arm64 linux/arm windows/amd64 darwin/arm64
VERSION     = $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)

.DEFAULT_GOAL = help
.PHONY: help demo test race lint bench bench-go cover cross build deb deb-test man fuzz torture mutants testdata

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## watch 10,000 messages from a real JetStream take effect exactly once
	@go run ./cmd/edge-consumer demo $(DEMO)

test: ## run the test suite (under three minutes on two cores)
	go test -timeout 10m $(PACKAGES)

race: ## run the tests with the race detector: the library, the binary, the lab's concurrent parts
	CGO_ENABLED=1 go test -race -timeout 10m . ./cmd/...
	CGO_ENABLED=1 go test -race -timeout 10m -run 'Linearizable|Network|Simulation|ClockJumps' ./internal/torture

lint: ## gofmt, go vet, staticcheck, go mod tidy; that bench/ works
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo "gofmt would change these files"; exit 1; }
	go vet $(PACKAGES)
	go run $(STATICCHECK) $(PACKAGES)
	go mod tidy -diff
	cd bench && go vet ./... && go mod tidy -diff && go test -short ./...

bench-go: ## the Go benchmarks: end to end beside a hand-written consumer, SQL beside Go handlers
	go test -run '^$$' -bench . -benchmem -timeout 60m . ./cmd/edge-consumer/internal/sqlhandler

bench: ## measure it beside its peers into docs/benchmarks.md (RUN=contenders,fsync BENCH=-quick)
	cd bench && go build -o scratch/bench . && scratch/bench -run '$(or $(RUN),all)' $(BENCH)

cover: ## write cover.out and print the coverage of each package
	go test -coverprofile cover.out -coverpkg ./... $(PACKAGES)
	go tool cover -func cover.out | tail -1

cross: ## build for every supported platform
	@for p in $(PLATFORMS); do \
		echo "build $$p"; \
		GOOS=$${p%/*} GOARCH=$${p#*/} GOARM=7 go build -trimpath -o /dev/null ./cmd/edge-consumer || exit 1; \
		GOOS=$${p%/*} GOARCH=$${p#*/} GOARM=7 go vet $(PACKAGES) || exit 1; \
	done

build: ## build bin/edge-consumer, one static binary
	go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/edge-consumer ./cmd/edge-consumer

deb: ## build the Debian packages for amd64, arm64 and armhf into dist/
	VERSION='$(VERSION)' packaging/deb.sh $(DEB)

deb-test: ## install, upgrade, remove and purge the package in a scratch folder (needs dpkg)
	VERSION='$(VERSION)' packaging/test-deb.sh

man: ## write the man pages and docs/commands.md again, from the help of the commands
	go test ./cmd/edge-consumer -run '^TestReference_(ManPages|Markdown)$$' -update

fuzz: ## run every fuzz target for a minute each (FUZZTIME=1m)
	go test -timeout 3h -v -run '^TestFuzzing$$' ./internal/torture -args -long -fuzztime $(or $(FUZZTIME),1m)

torture: ## the long form of the torture lab: hours; it renews docs/reliability.md
	go test -timeout 12h -v ./internal/torture -args -long -report ../../docs/reliability.md

mutants: ## deliberate faults, each of which the torture lab must find
	go test -timeout 30m -v -run '^TestMutants$$' ./internal/torture -args -long

testdata: ## fetch the GitHub events of testdata/ again (needs npm)
	testdata/github/make.sh
