# Targets are the names that .ci/run calls. FUZZTIME, TESTFLAGS, BENCH and CUDA may be set on the command line.

GO        ?= go
TESTFLAGS ?=
FUZZTIME  ?= 10s
BENCH     ?= .

# The rooms where goroutines share values. synth has one goroutine, and the race detector makes it ten times slower.
RACE_PKGS = $(filter-out sluice/engine/synth,$(shell $(GO) list ./kernels/... ./moe/... ./dump/... ./engine/... ./bench/probe ./bench/sweep))

GOALS = all build test race noasm bench fuzz lint generate check-long
.PHONY: $(GOALS) clean

ifneq ($(filter-out 0,$(CUDA)),)

# build.sh says what the machine lacks and refuses; no goal quietly means the CPU engine.
$(GOALS):
	@CUDA='$(CUDA)' ./build.sh

else

all: build

build:
	@./build.sh

test:
	$(GO) test $(TESTFLAGS) ./...

race:
	CGO_ENABLED=1 $(GO) test -race $(TESTFLAGS) $(RACE_PKGS)

noasm:
	$(GO) test -tags noasm $(TESTFLAGS) ./kernels/...

bench:
	$(GO) test -run '^$$' -bench '$(BENCH)' $(TESTFLAGS) ./...

fuzz:
	FUZZTIME='$(FUZZTIME)' bash .ci/fuzz.sh

lint:
	$(GO) vet ./...
	GOARCH=arm64 $(GO) vet ./...
	@out=$$(gofmt -l .) && [ -z "$$out" ] || { echo "gofmt would change:"; echo "$$out"; exit 1; }
	$(GO) test -run '^TestLint' $(TESTFLAGS) ./cmd/engine

generate:
	@if grep -rq --include='*.go' '^//go:generate ' .; then $(GO) generate ./...; else echo "nothing to generate"; fi

# What a release owes on top of every commit: minutes to an hour.
check-long: lint noasm
	CGO_ENABLED=1 $(GO) test -race -count=1 -timeout 60m ./...
	$(GO) test -run '^$$' -bench . -benchtime 1x ./...
	FUZZTIME=100000x FUZZLIMIT=600 bash .ci/fuzz.sh

endif

clean:
	rm -rf bin
