# `make demo` serves real weights, `make test` runs the tests; both set up .venv first and are quick when repeated.
PYTHON ?= python3
BIN := .venv/bin
# Files of tests at a time; each may start engines of its own, about 2 GB.
JOBS ?= 2
SIDE_BY_SIDE := -n $(JOBS) --dist loadfile --no-loadscope-reorder
RUN := HF_HUB_OFFLINE=1 $(BIN)/python

.PHONY: help setup demo test sweep lint docs references zoo bench clean
help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

setup:  ## make .venv, or find it up to date
	@$(PYTHON) .ci/setup.py

demo: setup  ## compare two real models, generate a package for one, prove it, serve it, ask it
	@$(RUN) -m onboard.cli.main demo

test: setup  ## run the tests; ARGS='-k name' narrows them
	$(RUN) -m pytest $(SIDE_BY_SIDE) $(ARGS)

sweep: setup  ## the tests that are too long for `make test`
	$(RUN) -m pytest $(SIDE_BY_SIDE) -m slow $(ARGS)

lint: setup  ## style, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup  ## write the generated references again
	$(RUN) -m onboard.report.reference

references: setup  ## render the reference models again
	$(RUN) -m onboard.scaffold.references .

zoo: setup  ## prove every decoder of transformers (half an hour); writes docs/zoo.md
	$(RUN) -m onboard.cli.main zoo --jobs 2 --output docs/zoo.md

bench: setup  ## throughput and start against vLLM's own CPU backend, host share, diff, onboard new, planted faults: JSON
	$(RUN) -m onboard.cli.main demo-model smollm2 --to models/smollm2
	$(RUN) benchmarks/serving_vs_vllm_cpu.py models/smollm2
	$(RUN) benchmarks/host_overhead.py models/smollm2
	$(RUN) benchmarks/diff_vs_guide_script.py
	$(RUN) benchmarks/onboard_new.py
	$(RUN) benchmarks/accuracy_faults.py

clean:  ## remove .venv and caches; models/ stays
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
