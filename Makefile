# The commands of a working day; `make help` lists them. Everything is built below build/.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := all
MAKEFLAGS += --no-print-directory

JOBS ?= $(shell nproc)
ARGS ?=
FUZZ_SECONDS ?= 60
SOAK_SECONDS ?= 600
TORTURE_SECONDS ?= 1800
PYTHON := $(CURDIR)/build/venv/bin/python
# Whether clang and its fuzzer are installed (scripts/bootstrap.sh fuzz or tidy): then `make test` searches for a moment.
CAN_FUZZ = $(wildcard $(shell clang++-14 -print-file-name=libclang_rt.fuzzer-$$(uname -m).a 2>/dev/null))
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)

# Configures a preset (silent unless it fails) and builds targets of it: $(call build,preset,targets,configure arguments)
define build
log="$$(mktemp)"; cmake --preset $(1) $(3) >"$$log" 2>&1 || { cat "$$log" >&2; rm -f "$$log"; exit 1; }; rm -f "$$log"
cmake --build --preset $(1) $(if $(2),--target $(2))
endef

.PHONY: all run test soak torture e2e diff bench fuzz tidy format clean help

all: ## build the server: build/larder
	@scripts/bootstrap.sh run
	@$(call build,release,larder)
	@ln -sfn release/larder build/larder

run: all ## build and run the server on port 5555; ARGS="..." are passed on to it
	@exec build/larder serve $(ARGS)

test: ## every test but the slow ones below; ctest's summary comes last
	@scripts/bootstrap.sh test
	@$(MAKE) all
	@$(call build,tsan,tsan_tests)
	@$(if $(CAN_FUZZ),$(call build,fuzz,fuzzers))
	@$(call build,dev,,-DLARDER_PYTHON=$(PYTHON) -DLARDER_TSAN_BUILD_DIR=$(CURDIR)/build/tsan \
	  -DLARDER_FUZZ_BUILD_DIR=$(if $(CAN_FUZZ),$(CURDIR)/build/fuzz))
	@ctest --test-dir build/dev --output-on-failure -j2

soak: all ## clients of four releases on one server for SOAK_SECONDS (600); bytes, replies and locks are checked
	@scripts/bootstrap.sh test
	@$(PYTHON) tests/releases/run_soak.py --binary build/larder --seconds $(SOAK_SECONDS) $(ARGS)

torture: all ## clients and server under kills, stalls, restarts and attacks for TORTURE_SECONDS (1800); docs/reliability.md
	@scripts/bootstrap.sh test
	@$(PYTHON) tests/torture/run_torture.py --binary build/larder --seconds $(TORTURE_SECONDS) $(ARGS)

e2e: all ## a vLLM engine on the CPU with LMCache's connector, of two releases, against the server (3.6 GB, minutes)
	@scripts/bootstrap.sh e2e
	@tests/e2e/run_e2e.py --binary build/larder $(ARGS)
	@tests/e2e/run_e2e.py --binary build/larder --client 0.5.6 $(ARGS)

diff: all ## the same requests to LMCache's own server and to ours, answers compared
	@scripts/bootstrap.sh diff
	@tests/differential/run_diff.py --binary build/larder $(ARGS)

bench: ## every benchmark; results as JSON in build/bench/results
	@scripts/bootstrap.sh bench
	@$(call build,bench,benchmarks)
	@mkdir -p build/bench/results
	@for program in build/bench/bench/*_bench; do \
	  name="$$(basename "$$program")"; \
	  "$$program" --benchmark_out="build/bench/results/$$name.json" --benchmark_out_format=json $(ARGS); \
	done

fuzz: ## every fuzz target for FUZZ_SECONDS (60)
	@scripts/bootstrap.sh fuzz
	@$(call build,fuzz,fuzzers)
	@scripts/fuzz.sh $(FUZZ_SECONDS)

tidy: ## clang-tidy and clang's thread-safety analysis over all files (long)
	@scripts/tidy.sh

format: ## format every C++ file
	@scripts/format.sh

clean: ## remove what was built, but not the Python environments
	@rm -rf build/release build/dev build/tsan build/bench build/clang build/fuzz build/larder

help: ## this list
	@sed -n 's/^\([a-z0-9]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14
