# `make image` and `make test` are the two commands to know. Each installs what it needs on Debian or Ubuntu.

VENV := .venv
PYTHON := $(VENV)/bin/python
COMMAND := $(VENV)/bin/tpu-image
INSTALLED := $(VENV)/installed

# Python's venv, and the tools that make a base and fetch agents; what else a command needs, it names.
RUN_PACKAGES := python3-venv \
	mmdebstrap debian-archive-keyring uidmap e2fsprogs fdisk mtools skopeo util-linux

# Tools that the tests hold our claims against.
PACKAGES := \
	bash bind9-dnsutils chromium cloud-init curl dash iproute2 libpam-modules patch shellcheck strace systemd systemd-container udev umockdev \
	btrfs-progs cryptsetup-bin dosfstools erofs-utils exfatprogs f2fs-tools gdisk libarchive-tools ntfs-3g \
	qemu-utils squashfs-tools xfsprogs xorriso \
	apache2-utils buildah docker-registry gcc libc6-dev

AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo)
WORKERS ?= auto

.PHONY: help
help: ## Show what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: install
install: run-packages $(COMMAND) ## Install the command in .venv/bin, and the system packages that it uses
	@echo "installed: $(CURDIR)/$(COMMAND)"

.PHONY: setup
setup: run-packages packages $(INSTALLED) ## Install all that the tests need besides

.PHONY: run-packages
run-packages:
	@tools/install-packages $(RUN_PACKAGES)

.PHONY: packages
packages:
	@tools/install-packages $(PACKAGES)

$(COMMAND): pyproject.toml | run-packages
	test -x $(PYTHON) || "$$(tools/find-python)" -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --editable '.[zstd]'
	touch $@

$(INSTALLED): $(COMMAND) | packages
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

.PHONY: image
image: install ## Make a TPU image from packages, check it, and say how to go on
	@tools/make-image $(PYTHON) build/tpu-debian-12.tar.gz

# Boots come first and one after another: whatever else runs would take their processor.
.PHONY: test
ifeq ($(AS_ROOT),)
test: setup boots ## Run every test: on a real Debian root, with the real tools, in booted machines
	root=$$(tools/debian-root) && udev=$$(tools/udev-root) && \
		TPU_IMAGE_TEST_ROOT_TAR=$$root TPU_IMAGE_TEST_UDEV_ROOT=$$udev $(PYTHON) -m pytest -n $(WORKERS) -m 'not lab and not matrix'
else
# A root with many owners can be unpacked by root alone: those tests run as root, the others as you.
test: setup boots
	$(PYTHON) -m pytest -n $(WORKERS) -m 'not real and not lab and not matrix'
	root=$$(tools/debian-root) && udev=$$(tools/udev-root) && sudo env PYTHONDONTWRITEBYTECODE=1 \
		TPU_IMAGE_TEST_ROOT_TAR=$$root TPU_IMAGE_TEST_UDEV_ROOT=$$udev $(PYTHON) -m pytest -p no:cacheprovider -n $(WORKERS) -m real
endif

.PHONY: boots
boots: setup ## Boot images in QEMU with emulated TPUs: what every change has to pass
	$(PYTHON) -m tpu_image lab setup
	base=$$(tools/test-base $(PYTHON)) && TPU_IMAGE_TEST_BASE=$$base $(PYTHON) -m pytest -m 'lab and not matrix' tests/lab

.PHONY: lab
lab: setup ## Boot them with everything that the lab can emulate; an hour or more
	$(PYTHON) -m tpu_image lab setup
	base=$$(tools/test-base $(PYTHON)) && kernel=$$(tools/iommufd-kernel) && \
		TPU_IMAGE_TEST_BASE=$$base TPU_IMAGE_TEST_KERNEL=$$kernel $(PYTHON) -m pytest -m 'lab or matrix' tests/lab

.PHONY: lint
lint: setup ## Run the linters and the type checker
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	shellcheck tools/* .ci/run src/tpu_image/bases/files/finish.sh src/tpu_image/customise/files/guest.sh

.PHONY: check
check: lint ## Run the linters and the quick tests, in two or three minutes
	$(PYTHON) -m pytest -n $(WORKERS) -m 'not slow and not real and not lab and not matrix'

.PHONY: zipapp
zipapp: install ## Make dist/tpu-image.pyz, the checker as a single file
	$(PYTHON) -m tpu_image.single_file dist/tpu-image.pyz
	@ls -l dist/tpu-image.pyz

.PHONY: benchmark
benchmark: setup ## Time check and apply on a real Debian root
	$(AS_ROOT) rm -rf --one-file-system build/benchmark && mkdir -p build/benchmark
	root=$$(tools/debian-root) && $(AS_ROOT) tar -xf "$$root" -C build/benchmark --exclude='./dev/*'
	$(AS_ROOT) $(PYTHON) benchmarks/check_and_apply.py build/benchmark

.PHONY: clean
clean: ## Remove everything that was made here (the cache folder stays)
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	$(AS_ROOT) rm -rf --one-file-system build
	find src tests -name __pycache__ -exec rm -rf {} +
