# Every target makes .venv first (scripts/setup), which takes a moment only once; those for PyTorch
# make .venv-torch.
export GLOG_minloglevel = 3
PYTHON = .venv/bin/python
PYTHON_TORCH = .venv-torch/bin/python

.PHONY: demo demo-torch test test-all check bench bench-box bench-bytes bench-faults bench-golden bench-hetero bench-hetero-paper bench-hidup-paper bench-kills bench-memory bench-memory-seconds bench-memory-torch bench-models bench-models-torch bench-overlap bench-paper bench-pipeline bench-pipeline-exactness bench-planning bench-planning-hf bench-race-torch bench-reshard bench-saving bench-search bench-table3 bench-truth bench-whale-box bench-whale-paper docs setup setup-torch clean

demo: setup
	$(PYTHON) -m examples.demo

# The same for PyTorch: a small Llama and a ResNet
demo-torch: setup-torch
	$(PYTHON_TORCH) -m examples.demo torch_tasks

test: setup setup-torch
	$(PYTHON) scripts/run_tests.py -m "not full"

test-all: setup setup-torch
	$(PYTHON) -m pytest
	$(PYTHON_TORCH) -m pytest tests/pytorch tests/exactness/test_losses.py \
		tests/runtime/test_as_planned.py tests/runtime/test_train.py tests/runtime/test_pipeline.py

check: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/pyright --pythonpath $(PYTHON)
	$(PYTHON) -m pytest -q tests/test_layers.py

# Pictures of pages and terminals: python scripts/docs_images.py.
# The site, in docs/_build/html/docs; a warning or a dead link is an error.
docs: setup
	$(PYTHON) -m sphinx -qW --keep-going -c docs -b html . docs/_build/html

# AutoDDL's evaluation: its figures and Table III predicted, its search, its ranking measured in the
# box (the last needs root and more than an hour).
bench: bench-paper bench-search bench-table3 bench-truth

# Cluster in a box: bytes and times of plans on shaped links. Both need root.
bench-bytes: setup
	$(PYTHON) -m benchmarks.box.bytes

# Our plan and every baseline in turns, in the box; needs root.
bench-box: setup
	$(PYTHON) -m benchmarks.race

# The same on PyTorch, against DDP, FSDP2 and DTensor's tensor parallelism; needs root.
bench-race-torch: setup-torch
	$(PYTHON_TORCH) -m benchmarks.torch_race --recalibrate

# Faults put into training jobs: how each ends, and what it says; 412 of them, 15 s each (needs root and nftables)
bench-faults: setup
	$(PYTHON) -m benchmarks.faults

# Plans against the record of what the planner found before
bench-golden: setup
	$(PYTHON) -m benchmarks.golden

# two fast and two slow hosts in a box, with emulated compute (needs root)
bench-hetero: setup
	$(PYTHON) -m benchmarks.box.uneven
	$(PYTHON) -m benchmarks.hetero

# HAP's figures on its machines of two kinds, predicted
bench-hetero-paper: setup
	$(PYTHON) -m benchmarks.hetero_paper

# Whale's balance of rows and layers on unlike hosts, in a box (needs root), and its figures predicted
bench-whale-box: setup
	$(PYTHON) -m benchmarks.whale_box

bench-whale-paper: setup
	$(PYTHON) -m benchmarks.whale_paper

# A run killed 50 times at random, on 4, 2, 3 and 1 devices in turn
bench-kills: setup
	$(PYTHON) -m benchmarks.trust.kills

# What an asynchronous save costs a step, and what saving and loading take of memory
bench-saving: setup
	$(PYTHON) -m benchmarks.trust.saving

# All families of image models and our own, planned: gaps, seconds, the closest known scheme
bench-models: setup
	$(PYTHON) -m benchmarks.models

# Models of torchvision and transformers on PyTorch: losses and parameters against one process
bench-models-torch: setup-torch
	$(PYTHON_TORCH) -m pip install --quiet torchvision
	$(PYTHON_TORCH) -m benchmarks.torch_models --shape 1x4 --shape 2x2 --shape 2x4 --save

# Hugging Face's models at their real size: the whole command, on 1024 devices.
bench-planning-hf: setup-torch
	$(PYTHON_TORCH) -m benchmarks.hf_planning

# a step of our executor beside OneFlow's own loop and DistributedDataParallel, and in the box how
# much of the exchange of gradients is hidden (needs root)
bench-overlap: setup
	$(PYTHON) -m benchmarks.overlap --save
	$(PYTHON) -m benchmarks.overlap_box
	$(PYTHON) -m benchmarks.overlap_box --real

# HiDup's Table 4, predicted
bench-hidup-paper: setup
	$(PYTHON) -m benchmarks.hidup_paper

bench-planning: setup
	$(PYTHON) -m benchmarks.planning_speed

bench-paper: setup
	$(PYTHON) -m benchmarks.paper --sensitivity

bench-truth: setup
	$(PYTHON) -m benchmarks.truth --recalibrate

bench-memory: setup
	$(PYTHON) -m benchmarks.memory
	$(PYTHON) -m benchmarks.memory_limits

# PyTorch's executor: live tensors of a step against the prediction
bench-memory-torch: setup-torch
	$(PYTHON_TORCH) -m benchmarks.torch_memory

# Seconds of ZeRO, recomputation and accumulation in the box; needs root
bench-memory-seconds: setup
	$(PYTHON) -m benchmarks.memory_seconds

# AlpaComm's Table 2, priced on its machine, then carried out on slow links (needs root)
bench-reshard: setup
	$(PYTHON) -m benchmarks.reshard
	$(PYTHON) -m benchmarks.box.reshard

# Step times of pipelines on slow links; needs root
bench-pipeline: setup
	$(PYTHON) -m benchmarks.pipeline
	$(PYTHON) -m benchmarks.pipeline_exchange

# Losses and parameters of pipelines against one process: the whole matrix, half an hour or more
bench-pipeline-exactness: setup
	$(PYTHON) -m benchmarks.pipeline_exactness

bench-table3: setup
	$(PYTHON) -m benchmarks.table3

bench-search: setup
	$(PYTHON) -m benchmarks.search_figure7

setup:
	@scripts/setup

setup-torch:
	@scripts/setup_torch

clean:
	rm -rf .venv .venv-torch build dist docs/_build *.egg-info .pytest_cache .ruff_cache .hypothesis log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
