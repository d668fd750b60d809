# SPDX-License-Identifier: Apache-2.0
# The front door: `make help` lists what can be done. Each target first sees to the system packages it needs
# (scripts/packages.txt), so a fresh Debian 12 or Ubuntu 24.04 needs no other set-up. CMake presets do the building.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

PROMPT ?= Once upon a time
RUN_ARGS ?= --raw --max-tokens 93 --temperature 0.7 --top-p 0.9 --seed 5
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 20
FUZZ_SEED ?= 0
FUZZ_RUNS ?= -1
BENCH_ARGS ?=
CTEST_ARGS ?=

# As many compilers as processors, but no more than one for each 1.5 GiB of memory that is free.
JOBS ?= $(shell awk -v cpus="$$(nproc)" '/^MemAvailable/ { n = int($$2 / 1572864) } END { if (n > cpus || n == "") n = cpus; print n < 1 ? 1 : n }' /proc/meminfo)

INSTALL := bash scripts/install_packages.sh
CTEST := ctest --no-tests=error --output-on-failure -j $(JOBS)
export PROMPT

.PHONY: build run test test-all lint tidy format bench fuzz asan tsan cuda install packages sizes clean help

build: build/release/build.ninja ## Build the release preset into build/release (the default target)
	@ninja -C build/release -n | grep -q 'no work to do' || cmake --build build/release -j $(JOBS)

# The program alone, where it is not up to date.
define BUILD_GALLEY
ninja -C build/release -n galley | grep -q 'no work to do' || { \
  echo "Building the program once; this takes some minutes on two cores."; \
  cmake --build build/release -j $(JOBS) --target galley; }
endef

run: build/release/build.ninja ## Continue PROMPT="…" with the embedded nano model (RUN_ARGS="…" replaces the settings)
	@$(BUILD_GALLEY)
	@printf '%s' "$$PROMPT"
	@build/release/galley generate $(RUN_ARGS) "$$PROMPT"

test: build/release/build.ninja ## Build the program and the fast tests and run them (a minute on two idle cores, after the build)
	@cmake --build build/release -j $(JOBS) --target galley fast_tests
	@$(CTEST) --test-dir build/release -LE slow -E _NOT_BUILT $(CTEST_ARGS)

test-all: build ## Build and run every test, those labelled slow as well
	@$(CTEST) --test-dir build/release $(CTEST_ARGS)

lint: build/release/build.ninja ## Check layers, repository rules and format; clang-tidy on changed files
	@$(INSTALL) lint
	@status=0; \
	python3 scripts/check_layers.py || status=1; \
	python3 scripts/check_repo.py || status=1; \
	bash scripts/clang_format.sh || status=1; \
	bash scripts/clang_tidy.sh || status=1; \
	exit $$status

tidy: build/release/build.ninja ## Run clang-tidy on every file (minutes)
	@$(INSTALL) lint
	@bash scripts/clang_tidy.sh --all

format: ## Format every tracked C++ file in place
	@$(INSTALL) lint
	@bash scripts/clang_format.sh --fix

bench: build ## Run the benchmarks (BENCH_ARGS="--benchmark_filter=…" chooses)
	@found=0; for bench in build/release/bench/*_bench; do \
	  [[ -x $$bench ]] || continue; found=1; echo "== $${bench##*/}"; "$$bench" $(BENCH_ARGS); \
	done; [[ $$found == 1 ]] || echo "There are no benchmarks yet."

fuzz: ## Run each fuzz target for FUZZ_SECONDS (20) seconds; needs clang
	@$(INSTALL) fuzz
	@$(MAKE) --no-print-directory build/fuzz/build.ninja
	@cmake --build build/fuzz -j $(JOBS) --target fuzzers
	@FUZZ_SEED='$(FUZZ_SEED)' FUZZ_RUNS='$(FUZZ_RUNS)' bash scripts/run_fuzzers.sh build/fuzz '$(FUZZ_SECONDS)'

asan tsan: %: build/%/build.ninja ## Build with sanitizers and run the fast tests (asan covers undefined behaviour too)
	@cmake --build build/$@ -j $(JOBS) --target galley fast_tests
	@$(CTEST) --test-dir build/$@ -LE slow -E _NOT_BUILT $(CTEST_ARGS)

cuda: packages ## Build the CUDA backend, its tests and benchmarks into build/cuda (needs nvcc 12.8; CUDA_ARCHS="90a-real" for one GPU)
	@cmake --preset release -B build/cuda -DGALLEY_CUDA=ON $(if $(CUDA_ARCHS),-DGALLEY_CUDA_ARCHITECTURES="$(CUDA_ARCHS)") >/dev/null
	@cmake --build build/cuda -j $(JOBS) --target galley cuda_tests load_bench

install: build/release/build.ninja ## Build the program and install it with its model and pages under PREFIX (/usr/local)
	@$(BUILD_GALLEY)
	@cmake --install build/release --prefix "$(PREFIX)"

sizes: ## Print what the tracked files weigh against their budgets
	@python3 scripts/check_repo.py --sizes

packages: ## Install the system packages that are missing
	@$(INSTALL)

clean: ## Remove everything that was built
	rm -rf build

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z -]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

# Ninja reruns CMake when a listed file changes; presets are the one input that it does not know.
build/%/build.ninja: CMakePresets.json | packages
	@cmake --preset $* >/dev/null
	@touch $@
