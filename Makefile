# make demo   a real Slurm cluster with emulated power hardware runs jobs under energy policies
# make check  lint and unit tests without the slow ones; any user, needs python3 (3.11) and pip; CHECK_WORKERS at once
# make test   everything: unit tests, emulated nodes, real Slurm cluster (root, Debian); TEST_WORKERS at once
# make soak   long rounds (300 of kill -9 of senergyd at random instants) and new examples for the property tests
# make lint   ruff, mypy --strict, layers of imports, clang-format
# make fuzz   guided fuzzing of what reaches the agent, FUZZ_SECONDS (60) for each target
# make plugins  the plugins for exactly the installed Slurm: its headers, and its source (fetched with apt)
# make training  the C library of the task-graph trainer, in the user's cache (compiled at its first use otherwise)
# make docs   the documentation as a site, build/site; broken links fail
# make man, completion  man pages and completion for bash, zsh and fish, in build/
# make install-hooks, uninstall-hooks   the C and Lua parts in PREFIX/lib/slurm-energy (docs/install-by-hand.md)
# make packages  packages in dist/, DIST=bookworm, trixie or el9 (without: this system's); docs/packages.md
# make dist   source distribution and wheel in dist/
# make venv   .venv with the package and its development needs;  make build  the C parts
# SLURM_PREFIX=/opt/slurm  with build, install and plugins: a Slurm outside /usr (without: the one on PATH)

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
DEPS := packaging/install-deps
# Debian's own Python first: an interpreter in a home directory cannot be run by other users' jobs.
PYTHON ?= $(shell for p in /usr/bin/python3 python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
# Tests start hundreds of interpreters. Without cached bytecode each of them compiles the package again.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/pip install --quiet
SLURM_PREFIX ?=
export SLURM_PREFIX
C_DIRS := $(wildcard spank prolog_epilog)
C_SOURCES = $(shell git ls-files '*.c' '*.h')
DEB = $(shell command -v apt-get)

.PHONY: all packages dist demo check test soak lint lint-python fuzz venv build install-hooks uninstall-hooks plugins training packages-dist docs man completion needs-of-tests packages-of-tests deps-% clean
all: venv build

# Debian's headers are of no use to a Slurm elsewhere.
deps-build:
	@if [ -n "$(DEB)" ]; then $(DEPS) build $$(packaging/slurm-headers --prefix '$(SLURM_PREFIX)' | sed -n 's|^/usr$$|headers|p'); fi

deps-%:
	@if [ -n "$(DEB)" ]; then $(DEPS) $*; fi

$(VENV)/bin/python:
	@if [ -n "$(DEB)" ] && ! $(or $(PYTHON),false) -c 'import ensurepip, venv' 2>/dev/null; then $(DEPS) python; fi
	@packaging/create-venv $(VENV) $(or $(PYTHON),/usr/bin/python3)

$(VENV)/.installed-lab: setup.cfg pyproject.toml | $(VENV)/bin/python
	@echo "Installing slurm-energy with its lab into $(VENV)"
	@$(PIP) --editable '.[lab,plots]' && touch $@

# Building the package in isolation takes a quarter as long as installing its needs: side by side. Tests that
# need gymnasium or pyarrow, which has 166 MB, are skipped.
LIST_OF_NEEDS := import configparser, sys; c = configparser.ConfigParser(); c.read("setup.cfg"); \
	print(c["options"]["install_requires"], c["options.extras_require"][sys.argv[1]])
$(VENV)/.installed-check: setup.cfg pyproject.toml | $(VENV)/bin/python
	@echo "Installing slurm-energy and the needs of its unit tests into $(VENV)"
	@$(PIP) --no-compile --no-deps --editable . & package=$$!; \
	$(BIN)/python -c '$(LIST_OF_NEEDS)' check | packaging/install-requirements $(VENV); needs=$$?; \
	wait $$package && [ $$needs = 0 ] && touch $@ $(VENV)/.installed-lab

$(VENV)/.installed-dev: setup.cfg pyproject.toml | $(VENV)/bin/python
	@echo "Installing slurm-energy and its development needs into $(VENV)"
	@$(PIP) --editable '.[dev]' && touch $@ $(VENV)/.installed-check $(VENV)/.installed-lab

$(VENV)/.installed-docs: setup.cfg pyproject.toml | $(VENV)/bin/python
	@echo "Installing what builds the documentation into $(VENV)"
	@$(PIP) --editable '.[docs]' && touch $@

# Tests import a part of these packages only: compiling all of them takes longer than compiling that part.
$(VENV)/.installed-judges: setup.cfg pyproject.toml | $(VENV)/bin/python
	@echo "Installing slurm-energy, its development needs and tools to compare measurements with into $(VENV)"
	@$(PIP) --no-compile --editable '.[dev,judges]' && touch $@ $(VENV)/.installed-dev $(VENV)/.installed-check $(VENV)/.installed-lab

venv: $(VENV)/.installed-dev

build: deps-build
	@for dir in $(C_DIRS); do $(MAKE) --no-print-directory -C $$dir || exit 1; done

# Under another prefix: make install-hooks PREFIX=/opt/slurm-energy. Upgrades replace each file at once.
install-hooks:
	@for dir in $(C_DIRS); do $(MAKE) --no-print-directory -C $$dir install || exit 1; done

uninstall-hooks:
	@for dir in $(C_DIRS); do $(MAKE) --no-print-directory -C $$dir uninstall || exit 1; done

plugins: deps-build deps-plugins $(VENV)/.installed-lab
	@$(BIN)/senergy build-plugins $(if $(SLURM_PREFIX),--slurm-prefix '$(SLURM_PREFIX)')

training: deps-training $(VENV)/.installed-check
	@$(BIN)/python -c 'from slurm_energy.training.taskgraph.native_library import build_library; print(build_library())'

# The distribution of this host by default.
DIST ?= $(shell . /etc/os-release 2>/dev/null && echo $$VERSION_CODENAME)

packages-dist:
	@case '$(DIST)' in bookworm | trixie | el9) ;; *) \
		echo "make packages: DIST is bookworm, trixie or el9, not '$(DIST)'" >&2; exit 2 ;; esac

packages: packages-dist deps-packages
	@case '$(DIST)' in el*) packaging/build-rpms '$(DIST)' dist ;; *) packaging/build-debs '$(DIST)' dist ;; esac

dist: deps-packages
	@packaging/build-dist /usr/bin/python3 dist

demo: deps-build deps-lab $(VENV)/.installed-lab build
	@$(BIN)/senergy lab demo

# One more than the processors, because some tests wait.
CHECK_WORKERS ?= $(shell expr $$(nproc) + 1)
# Without apt: tests of what this machine lacks (a C compiler, root, Slurm, munge) are skipped and say why.
check: DEB :=
# Lint runs beside the tests, because neither keeps two cores busy.
check: $(VENV)/.installed-check
	@log=$$(mktemp); $(MAKE) --no-print-directory lint-python >$$log 2>&1 & lint=$$!; \
	$(BIN)/python .ci/tests-in-parts $(CHECK_WORKERS) tests/unit tests/lab -- \
		-q --hypothesis-profile=check -m 'not slow and not soak' $(PYTEST_ARGS); tests=$$?; \
	wait $$lint; lint=$$?; cat $$log; rm -f $$log; \
	if command -v clang-format >/dev/null; then clang-format --dry-run --Werror $(C_SOURCES) || lint=1; else \
		echo "C sources not checked: no clang-format (make lint does)"; fi; \
	[ $$tests = 0 ] && [ $$lint = 0 ]

# Tests of clusters wait for sampled seconds and for slurmctld most of their time, so that six workers suit two
# cores; each has labs of its own. A file's tests stay together. tests/conftest.py mixes files that wait and compute.
TEST_WORKERS ?= 6
test: needs-of-tests
	@$(MAKE) --no-print-directory build
	@$(BIN)/senergy build-plugins || echo "Tests of slurmctld's plugin will be skipped"
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

# apt and pip wait for the network and the disk most of their time: they install side by side.
needs-of-tests: $(VENV)/bin/python
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=line packages-of-tests $(VENV)/.compiled

packages-of-tests:
	@if [ -n "$(DEB)" ]; then $(DEPS) build lab test page training $$(packaging/slurm-headers --prefix '$(SLURM_PREFIX)' | sed -n 's|^/usr$$|headers|p'); fi

# Otherwise each worker would compile all tests.
$(VENV)/.compiled: $(VENV)/.installed-judges
	@echo "Compiling the tests"
	@$(BIN)/python -m pytest --collect-only -q >/dev/null 2>&1 || true; touch $@

soak: deps-build deps-lab deps-test $(VENV)/.installed-dev build
	$(BIN)/python -m pytest -m soak
	SENERGY_KILL_ROUNDS=300 $(BIN)/python -m pytest -s tests/node/test_agent_kill.py
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --hypothesis-profile=search tests/unit tests/lab

lint-python: $(VENV)/.installed-check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo >/dev/null || $(BIN)/lint-imports --no-logo
	.ci/unique-class-names

# Benchmarks call libraries without types, so that some checks do not apply to them.
lint: deps-build deps-lint $(VENV)/.installed-dev lint-python
	$(BIN)/mypy $(addprefix --disable-error-code ,import-not-found import-untyped misc no-any-return no-untyped-call unused-ignore) benchmarks
	clang-format --dry-run --Werror $(C_SOURCES)
	@for dir in $(C_DIRS); do $(MAKE) --no-print-directory -C $$dir clean all CFLAGS_EXTRA='-Wall -Wextra -Werror' || exit 1; done
	@CFLAGS_EXTRA='-Wall -Wextra -Werror' $(BIN)/senergy build-plugins || { \
		code=$$?; [ $$code = 4 ] && echo "Not all of plugins/ compiled: no source or headers of Slurm"; }

# Files for a package: build/man/*.[158], and build/completion/ with the names that the three shells expect.
man: $(VENV)/.installed-check
	@$(BIN)/python -m slurm_energy.cli.man build/man

completion: $(VENV)/.installed-check
	@mkdir -p build/completion
	@$(BIN)/python -m slurm_energy.cli.completion bash > build/completion/senergy
	@$(BIN)/python -m slurm_energy.cli.completion zsh > build/completion/_senergy
	@$(BIN)/python -m slurm_energy.cli.completion fish > build/completion/senergy.fish

# Broken links, broken anchors and pages outside the navigation are errors.
docs: $(VENV)/.installed-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --clean --quiet
	@echo "build/site/index.html"

FUZZ_SECONDS ?= 60
fuzz: $(VENV)/.installed-dev
	@for target in messages hook_environment server; do \
		$(BIN)/python tests/fuzz/agent_input.py $$target -max_total_time=$(FUZZ_SECONDS) -max_len=4096 || exit 1; done

clean:
	@for dir in $(C_DIRS); do $(MAKE) --no-print-directory -C $$dir clean; done
	rm -f plugins/*.so
	rm -rf $(VENV) build *.egg-info
