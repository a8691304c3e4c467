# Two commands do all set-up: `make up` runs Pillarbox whole, `make test` tests it whole.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help install up test coverage versions check bench lock clean

help: ## Show this list
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

install: .venv/dev ## Create .venv with everything that running and testing need

.venv/runtime: requirements/runtime.txt pyproject.toml
	@PYTHON="$(PYTHON)" requirements/install runtime
	@touch $@

.venv/dev: requirements/dev.txt pyproject.toml
	@PYTHON="$(PYTHON)" requirements/install dev
	@touch .venv/runtime $@

up: .venv/runtime ## Run Pillarbox with an embedded PostgreSQL kept in .pillarbox/
	@exec $(BIN)/pillarbox up $(ARGS)

test: install ## Run all tests (PYTEST="-k name" for some); those of the database on every PostgreSQL at hand
	@tests/packages
	@tests/run $(PYTEST)

coverage: install ## Run all tests and say which lines they never reach
	$(BIN)/python -m pytest -n 4 --dist worksteal --cov --cov-report=term --cov-fail-under=85 $(PYTEST)

versions: install ## Run the tests of the database on PostgreSQL 14 to 18, as far as they can be had
	@$(BIN)/python tests/postgres_versions.py | while read -r bin; do echo "with $$($$bin/postgres --version)"; \
	  TEST_POSTGRES_BIN=$$bin $(BIN)/python -m pytest -q -n 4 --dist worksteal $$(cat tests/on_every_postgres) $(PYTEST) \
	    </dev/null || exit 1; done

check: install ## Lint, format check, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install ## Measure, against peers in the same run (ARGS="--only drain" for some)
	$(BIN)/python -m benchmarks $(ARGS)

COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
  --no-emit-index-url --no-emit-find-links

lock: install ## Compile requirements/*.txt again from pyproject.toml
	@command -v uv >/dev/null || $(BIN)/python -m pip install --quiet uv
	PATH="$(BIN):$$PATH" $(COMPILE) pyproject.toml requirements/build.in --extra all --output-file requirements/runtime.txt
	PATH="$(BIN):$$PATH" $(COMPILE) pyproject.toml requirements/build.in --extra all --extra test \
	  --constraint requirements/runtime.txt --output-file requirements/dev.txt

clean: ## Remove everything that was built; keeps .pillarbox/
	rm -rf .venv build dist htmlcov .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis
