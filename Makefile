# Targets are the names that .ci/run calls. FUZZTIME, TESTFLAGS, BENCH, ROOM, BASE, CUDA, CUDA_HOME and CUDA_ARCH may be set on the
# command line. CUDA=1 adds the device arm to build and test; the other goals are the same without a device.

GO        ?= go
TESTFLAGS ?=
FUZZTIME  ?= 10s
BENCH     ?= .
ROOM      ?=
BASE      ?=
CUDA      ?= 0
CUDA_HOME ?=
CUDA_ARCH ?=
export CUDA CUDA_HOME CUDA_ARCH

# The rooms where goroutines share values. synth has one goroutine, and the race detector makes it ten times slower.
RACE_PKGS = $(filter-out sluice/engine/synth,$(shell $(GO) list ./kernels/... ./moe/... ./dump/... ./engine/... ./bench/probe ./bench/sweep))

.PHONY: all build test quick race noasm bench fuzz lint generate goldens check-long cuda-emu cuda-test cuda-check clean

all: build

build:
	@./build.sh

test: $(if $(filter-out 0,$(CUDA)),cuda-test)
	$(GO) test $(TESTFLAGS) ./...

# ROOM=engine, or what git says has changed: what a change needs while it is being written.
quick:
	@ROOM='$(ROOM)' BASE='$(BASE)' TESTFLAGS='$(TESTFLAGS)' bash .ci/quick.sh

race:
	CGO_ENABLED=1 $(GO) test -race $(TESTFLAGS) $(RACE_PKGS)

noasm:
	$(GO) test -tags noasm $(TESTFLAGS) ./kernels/...

bench:
	$(GO) test -run '^$$' -bench '$(BENCH)' $(TESTFLAGS) ./...

fuzz:
	FUZZTIME='$(FUZZTIME)' bash .ci/fuzz.sh

# The source rules run from their folder: so go never takes them from its cache, and shows which commits they read.
lint:
	$(GO) vet ./...
	GOARCH=arm64 $(GO) vet ./...
	@out=$$(gofmt -l .) && [ -z "$$out" ] || { echo "gofmt would change:"; echo "$$out"; exit 1; }
	cd cmd/engine && $(GO) test -run '^TestLint' $(TESTFLAGS)

generate:
	@if grep -rq --include='*.go' '^//go:generate ' .; then $(GO) generate ./...; else echo "nothing to generate"; fi

# Renews the golden files that our own tests write, in every package that has some. What other programs answered stays.
goldens:
	$(GO) test -count=1 $$(grep -rl --include='*_test.go' 'flag.Bool("update"' . | xargs -n 1 dirname | sort -u) -update

# bin/emu/libcuda.so.1: libcuda with the CPU for a device. It takes g++ alone.
cuda-emu:
	@sh cuda/emu/build.sh bin/emu

# The device arm's tests on the emulated device. They compile against a toolkit's headers; see cuda/install-toolkit.sh.
cuda-test: cuda-emu
	@environment=$$(cuda/env.sh) && eval "$$environment" && set -x && \
		$(GO) vet -tags cuda ./cuda/... ./cmd/engine && \
		$(GO) test -exec "$$PWD/cuda/emu/run.sh" -tags cuda $(TESTFLAGS) ./cuda/... && $(GO) test -tags cuda -run '^TestCUDA' $(TESTFLAGS) ./cmd/engine

# bin/check and bin/check.tar.gz: what cuda/check.sh runs on a machine with a GPU and no Go.
cuda-check:
	@CUDA=1 ./build.sh && cuda/check-pack.sh

# What a release owes on top of every commit: minutes to an hour.
check-long: lint noasm build
	CGO_ENABLED=1 $(GO) test -race -count=1 -timeout 60m ./...
	$(GO) test -run '^$$' -bench . -benchtime 1x ./...
	FUZZTIME=100000x FUZZLIMIT=600 bash .ci/fuzz.sh
	bench/scripts/disks.sh || [ $$? = 77 ]
	@if cuda/env.sh --device >/dev/null; then SLUICE_LONG=1 $(MAKE) cuda-test TESTFLAGS='-count=1 -timeout 60m' && \
		SLUICE_EMU_ORDER=reverse $(MAKE) cuda-test TESTFLAGS=-count=1; else echo "skipped: the device arm's tests, for want of a CUDA toolkit"; fi

clean:
	rm -rf bin cuda/driver/image/kernels
