# Every target sets up what it needs; an interpreter (3.11 or later) and a package index are enough.
# `make mutants` plants one-line bugs in a copy of the tree and reports which of them the tests catch; it takes a while.
# Variables: ARGS (for run, test, bench, mutants), PYTHON (an interpreter to use instead of the first one found).

EXAMPLE := examples/newsroom/main.py
ARGS :=
# Most tests wait more than they compute, so four processes, each with its own servers, keep two cores busy. Two of them
# begin with the chaos tests: see tests/scheduling.py.
SPREAD := --dist loadfile --numprocesses

# The processes of a suite import the same modules, so each module is compiled once.
unexport PYTHONDONTWRITEBYTECODE

# uv must use an installed interpreter and never download one.
export UV_PYTHON_DOWNLOADS := never

# An account without a writable home (a service user, some containers) gets a cache beside the code.
ifneq ($(shell test -d "$$HOME" && test -w "$$HOME" && echo usable),usable)
export UV_CACHE_DIR := $(CURDIR)/.uv/cache
endif

# A private certificate authority is installed in the system's store, which uv does not read by default.
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem),)
export UV_SYSTEM_CERTS ?= true
endif

UV := $(shell command -v uv 2>/dev/null)
ifeq ($(UV),)
UV := $(CURDIR)/.uv/bin/uv
OWN_UV := .uv/bin/uv
endif

# The stamps mark .venv as synced with the lock, so --no-sync starts at once and needs no network.
READY := .venv/.ready
READY_BENCH := .venv/.ready-bench
READY_DEPLOY := .venv/.ready-deploy
RUN := $(UV) run --frozen --no-sync

# The dashboard is built into the package, where servers read it.
UI := src/runlane/ui_assets/index.html
UI_SOURCES := $(shell find ui/src ui/public ui/scripts -type f) ui/index.html ui/vite.config.ts ui/tsconfig.json pyproject.toml

.PHONY: run test soak durations check deploy-check dist sbom bench mutants fmt clean ui ui-check ui-types
.DELETE_ON_ERROR:

# Without an npm registry the example still runs, and the server says that the dashboard is not built.
run: $(READY)
	@$(MAKE) --no-print-directory ui || echo "The dashboard is not built; the API and the command line work without it."
	@$(RUN) python $(EXAMPLE) $(ARGS)

# Prompts are tested at a terminal, and readline reads its type once, when pytest starts.
test soak durations: export TERM := xterm-256color

# A test of the API that does not depend on the database is executed on one of two: see tests/variants.py.
test: $(READY) $(UI)
ifeq ($(ARGS),)
	TEST_DATABASES=one $(RUN) pytest $(SPREAD) 4
else
	$(RUN) pytest $(ARGS)
endif

# The long tests at full size: thousands of runs, tens of thousands of lines and steps.
soak: $(READY) $(UI)
	TEST_SOAK=1 $(RUN) pytest $(SPREAD) 2 $(or $(ARGS),tests/chaos)

# Measures how long each part of the suite takes, which decides what begins first.
durations: $(READY) $(UI)
	TEST_DURATIONS=1 TEST_DATABASES=one $(RUN) pytest $(SPREAD) 4

check: $(READY_BENCH)
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(RUN) pyright
	$(RUN) lint-imports
	$(RUN) python .ci/check_lock.py uv.lock

# The files of deploy/ with the real tools. Rows whose tool is missing are reported; ARGS="systemd YAML" chooses rows.
deploy-check: $(READY_DEPLOY)
	$(RUN) python -m deploy.checks.tools $(ARGS)

# The wheel and the source distribution, with the dashboard. The same commit gives the same bytes.
dist: $(READY) $(UI)
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} $(UV) build --quiet --clear
	@cd dist && sha256sum *.whl *.tar.gz

# The packages that an installation has, with every extra, and those that the dashboard is built of, as CycloneDX.
sbom: $(READY)
	@mkdir -p dist
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} $(RUN) python -m deploy.sbom $(UV) > dist/runlane.cdx.json

bench: $(READY_BENCH)
	$(UV) run --frozen --no-sync --group bench python -m bench $(ARGS)

mutants: $(READY)
	$(RUN) python -m tests.mutants $(ARGS)

fmt: $(READY)
	$(RUN) ruff format
	$(RUN) ruff check --fix

ui: $(UI)

# Types, lint and unit tests of the dashboard, and its size budget.
ui-check: $(UI)
	cd ui && ../.ci/with-node npm run --silent check
	cd ui && ../.ci/with-node npm run --silent test
	cd ui && ../.ci/with-node npm run --silent size

# Generates the types of the API for the dashboard; run it when a test reports that the API has changed.
ui-types: $(READY)
	cd ui/codegen && ../../.ci/with-node npm ci --silent
	$(RUN) python -m tests.ui.api_schema > ui/codegen/openapi.json
	cd ui/codegen && ../../.ci/with-node npx --no-install openapi-typescript openapi.json --default-non-nullable=false -o schema.d.ts
	($(RUN) python -m tests.ui.api_schema --digest; cat ui/codegen/schema.d.ts) > ui/src/api/schema.d.ts

clean:
	rm -rf ui/node_modules ui/codegen/node_modules src/runlane/ui_assets
	rm -rf .venv .uv .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage .coverage.* dist
	find src tests examples bench -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(READY): pyproject.toml uv.lock .ci/find-python $(OWN_UV)
	@echo "Installing Runlane and the packages that it is built and tested with into .venv: once, a minute or two."
	@python="$$(PYTHON='$(PYTHON)' .ci/find-python)" && $(UV) sync --frozen --quiet --python "$$python"
	@touch $@

# The type checker also reads bench/, so `check` needs the packages that bench/ compares Runlane with.
$(READY_BENCH): $(READY)
	@echo "Installing the packages that Runlane is compared with into .venv: once."
	@$(UV) sync --frozen --quiet --group bench
	@touch $@

$(UI): $(UI_SOURCES) ui/node_modules/.ready
	@echo "Building the dashboard into src/runlane/ui_assets."
	@cd ui && ../.ci/with-node npm run --silent build

ui/node_modules/.ready: $(READY) ui/package-lock.json ui/package.json
	@echo "Installing the packages that the dashboard is built with into ui/node_modules: once."
	@cd ui && ../.ci/with-node npm ci --silent
	@touch $@

$(READY_DEPLOY): $(READY)
	@echo "Installing the tools that check deploy/ into .venv: once."
	@$(UV) sync --frozen --quiet --inexact --group deploy
	@touch $@

.uv/bin/uv: .ci/find-python
	@echo "Installing uv, which installs everything else, into .uv: once."
	@python="$$(PYTHON='$(PYTHON)' .ci/find-python --with-venv)" && "$$python" -m venv --clear .uv
	@.uv/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.13'
	@touch $@
