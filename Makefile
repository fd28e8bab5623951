# Every target sets up what it needs: an interpreter from 3.11 on and a package index are enough.
# Variables: ARGS (for run, test, bench), PYTHON (an interpreter to use instead of the first one found).

EXAMPLE := examples/newsroom/main.py
ARGS :=
# The suite mostly waits, so three processes with servers of their own take less than half the time on two cores. Those of
# tests/chaos start many processes themselves. A file stays in one of them.
SPREAD := --dist loadfile --numprocesses

# uv must use the interpreter that is there, and never fetch one.
export UV_PYTHON_DOWNLOADS := never

# An account without a usable home (a service user, some containers) gets a cache beside the code.
ifneq ($(shell test -d "$$HOME" && test -w "$$HOME" && echo usable),usable)
export UV_CACHE_DIR := $(CURDIR)/.uv/cache
endif

# A network with a certificate authority of its own has told the system about it, which uv does not ask by default.
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem),)
export UV_SYSTEM_CERTS ?= true
endif

UV := $(shell command -v uv 2>/dev/null)
ifeq ($(UV),)
UV := $(CURDIR)/.uv/bin/uv
OWN_UV := .uv/bin/uv
endif

# The stamps say that .venv is in step with the lock, so --no-sync makes a start instant and needs no network.
READY := .venv/.ready
READY_BENCH := .venv/.ready-bench
RUN := $(UV) run --frozen --no-sync

.PHONY: run test soak check bench fmt clean
.DELETE_ON_ERROR:

run: $(READY)
	@$(RUN) python $(EXAMPLE) $(ARGS)

test: $(READY)
ifeq ($(ARGS),)
	$(RUN) pytest $(SPREAD) 3 --ignore tests/chaos
	$(RUN) pytest $(SPREAD) 2 tests/chaos
else
	$(RUN) pytest $(ARGS)
endif

# The long tests at full size: thousands of runs, tens of thousands of lines and steps.
soak: $(READY)
	TEST_SOAK=1 $(RUN) pytest $(SPREAD) 2 $(or $(ARGS),tests/chaos)

check: $(READY_BENCH)
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(RUN) pyright
	$(RUN) lint-imports
	$(RUN) python .ci/check_lock.py uv.lock

bench: $(READY_BENCH)
	$(UV) run --frozen --no-sync --group bench python -m bench $(ARGS)

fmt: $(READY)
	$(RUN) ruff format
	$(RUN) ruff check --fix

clean:
	rm -rf .venv .uv .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage .coverage.* dist
	find src tests examples bench -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(READY): pyproject.toml uv.lock .ci/find-python $(OWN_UV)
	@echo "Installing Runlane and the packages that it is built and tested with into .venv: once, a minute or two."
	@python="$$(PYTHON='$(PYTHON)' .ci/find-python)" && $(UV) sync --frozen --quiet --python "$$python"
	@touch $@

# The type checker reads bench/ too, so `check` needs the packages it compares with.
$(READY_BENCH): $(READY)
	@echo "Installing the packages that Runlane is compared with into .venv: once."
	@$(UV) sync --frozen --quiet --group bench
	@touch $@

.uv/bin/uv: .ci/find-python
	@echo "Installing uv, which installs everything else, into .uv: once."
	@python="$$(PYTHON='$(PYTHON)' .ci/find-python --with-venv)" && "$$python" -m venv --clear .uv
	@.uv/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.13'
	@touch $@
