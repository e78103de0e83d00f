# Commands for contributors. `make` without a target lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
CARGO ?= cargo
# The documentation is for readers of the source, and some of it is printed by --help.
DOC_ALLOWS := -A rustdoc::private_intra_doc_links -A rustdoc::bare_urls
QUICKLY := --config hack/quickly.toml
# All binaries. Tests enable more features of dependencies, such as the clock of tokio: with one of them among the targets, nothing is
# compiled twice, once for binaries and once for tests.
BINARIES := --workspace --bins --test readings

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

.PHONY: demo
demo: ## Show rate limits at work, without a cluster and without Redis
	@$(CARGO) run -q $(QUICKLY) -p sluice --no-default-features -- demo

.PHONY: build
build: ## Build all binaries
	$(CARGO) build $(BINARIES)

# KUBEBUILDER_ASSETS may name a directory with kube-apiserver, etcd and kubectl. Otherwise they are built.
.PHONY: test
test: ## Run all tests that need no privileges (installs Redis and etcd, fetches Valkey and Redis 6.2, builds kube-apiserver once)
	tests/node/apt.sh test
	@export KUBEBUILDER_ASSETS="$${KUBEBUILDER_ASSETS:-$$(tests/node/assets.sh apiserver)}" && \
	  export SLUICE_VALKEY="$${SLUICE_VALKEY:-$$(tests/node/valkey.sh)}" && \
	  export SLUICE_REDIS_6_2="$${SLUICE_REDIS_6_2:-$$(tests/node/redis62.sh)}" && \
	  export SLUICE_H2SPEC="$${SLUICE_H2SPEC:-$$(tests/node/h2spec.sh)}" && \
	  export SLUICE_ENVOY="$${SLUICE_ENVOY:-$$(bench/tools/install.sh envoy)}" && \
	  export SLUICE_CADDY="$${SLUICE_CADDY:-$$(bench/tools/install.sh caddy)}" && set -x && \
	  $(CARGO) build $(BINARIES) && tests/run.py --workspace

.PHONY: interop
interop: ## Run the tests with programs that CI does not have: 30 frameworks and servers (Mono from Debian), Tomcat (Java and Maven), ratelimit, an OpenTelemetry collector, oauth2-proxy, Traefik and Envoy Gateway (Go, root)
	tests/node/apt.sh interop
	$(CARGO) build -p sluice && $(CARGO) test -p sluice-tests --test integration -- path_spellings:: --include-ignored
	$(CARGO) test -p sluice-tests --test integration -- live_readings:: --include-ignored --test-threads=1
	SLUICE_RATELIMIT="$$(bench/tools/install.sh ratelimit)" $(CARGO) test -p sluice-service --test integration -- ratelimit:: --include-ignored
	export SLUICE_OTELCOL="$$(tests/node/otelcol.sh)" SLUICE_ENVOY="$$(bench/tools/install.sh envoy)" && \
	  $(CARGO) build -p sluice -p sluice-service --bins && \
	  $(CARGO) test -p sluice-tests --test integration -- traces:: span_below
	export SLUICE_ENVOY="$$(bench/tools/install.sh envoy)" SLUICE_CADDY="$$(bench/tools/install.sh caddy)" && \
	  export SLUICE_OAUTH2_PROXY="$$(bench/tools/install.sh oauth2-proxy)" && \
	  export SLUICE_TRAEFIK="$$(bench/tools/install.sh traefik)" SLUICE_NGINX="$$(bench/tools/install.sh nginx)" && \
	  $(CARGO) test -p sluice-tests --test integration -- gateways:: --include-ignored
	tests/interop/envoy-gateway.sh

.PHONY: instructions
instructions: ## Count the instructions of a request with a release build, and with an older one (valgrind; OLDER=PATH)
	bench/apt.sh valgrind=valgrind
	$(CARGO) build --release -p sluice
	bench/instructions.py target/release/sluice $(OLDER)

.PHONY: skew
skew: ## Run the sidecar of an older commit with today's operator (builds it once; SLUICE_SKEW_COMMIT)
	tests/node/apt.sh test
	tests/skew.sh

# Needs `cargo install --locked cargo-fuzz --version 0.13.2` and a nightly compiler. `cargo test -p sluice-fuzz` needs neither.
.PHONY: fuzz
fuzz: ## Run all checks of hostile input with libFuzzer, an hour together (FUZZ_SECONDS sets the time of each)
	@set -e; for target in $$(cargo fuzz list --fuzz-dir fuzz/libfuzzer); do \
	  fuzz/run.sh $$target $${FUZZ_SECONDS:-600}; \
	done

.PHONY: soak
soak: ## Run for half an hour with edits, leaving clients and kills of Redis (SLUICE_SOAK_SECONDS sets the time)
	tests/node/apt.sh test
	@export KUBEBUILDER_ASSETS="$${KUBEBUILDER_ASSETS:-$$(tests/node/assets.sh apiserver)}" && \
	  $(CARGO) build -p sluice-operator -p sluice-sidecar --bins && \
	  $(CARGO) test -p sluice-tests --test integration -- soak:: --ignored --nocapture
.PHONY: chaos
chaos: ## Break the stores in random ways and compare what was admitted with N (SLUICE_CHAOS_SECONDS of each store, SLUICE_CHAOS_SEED)
	tests/node/apt.sh test
	SLUICE_CHAOS_SECONDS=$${SLUICE_CHAOS_SECONDS:-120} $(CARGO) test -p sluice-store --test integration -- chaos::rounds --ignored --nocapture --test-threads=1

.PHONY: models
models: ## Check the models of the protocols within larger bounds, and that each notices the mutants of its rules (half an hour)
	$(CARGO) test -p sluice-models --lib -- --ignored --nocapture --test-threads=1
	models/mutants.py

.PHONY: pressure
pressure: ## Put the sidecar under each shape of pressure for a minute, in a cgroup of 128 MiB (15 minutes, root)
	SLUICE_PRESSURE_SECONDS=60 $(CARGO) test --release -p sluice-sidecar --test integration -- pressure:: --nocapture

# KUBERNETES=1.30 chooses another version than the default, as SLUICE_KUBERNETES does in the environment.
e2e e2e-build node: export SLUICE_KUBERNETES := $(or $(KUBERNETES),$(SLUICE_KUBERNETES))
# HELM=4 chooses Helm 4 in place of Helm 3, as SLUICE_HELM does in the environment.
chart e2e e2e-build node: export SLUICE_HELM := $(or $(HELM),$(SLUICE_HELM))

.PHONY: e2e
e2e: ## Run the end-to-end tests on a real Kubernetes node (root; KUBERNETES=1.30 and HELM=4 choose versions)
	tests/node/apt.sh node
	tests/e2e.sh

.PHONY: e2e-build
e2e-build: ## Build what the end-to-end tests run (SLUICE_E2E_BUILT=yes make e2e does not build it again)
	tests/node/apt.sh node
	tests/e2e.sh --build

.PHONY: node
node: ## Start a real Kubernetes node with Sluice installed and leave it running (root)
	tests/node/apt.sh node
	tests/e2e.sh --keep

.PHONY: node-down
node-down: ## Stop that node and remove every trace of it (root)
	tests/node/node.sh down

.PHONY: images
images: ## Build the container images into images/
	hack/images.sh

.PHONY: bench
bench: ## Measure against peers, and the control plane (half an hour after the build), and write the pages about performance
	bench/run.sh --write

.PHONY: generate
generate: ## Generate the CRDs and the API reference from the types, and the chart's README and dashboards
	$(CARGO) run -q -p sluice-crds --bin crdgen crds/yaml charts/sluice/files/crds docs/reference.md
	hack/chart/readme.py
	hack/chart/dashboards.py

.PHONY: docs
docs: ## Build the documentation as a site with search in target/site, and check its links
	hack/docs.sh

.PHONY: fmt
fmt: ## Format the code
	$(CARGO) fmt --all
	$(CARGO) fmt --manifest-path bench/limitador/Cargo.toml

.PHONY: chart
chart: ## Check the Helm chart: schemas of all Kubernetes versions, kube-score, alerts (installs what it needs; HELM=4)
	hack/chart/check.sh

.PHONY: lint
lint: ## Formatting, clippy, rustdoc, scripts, structure, versions and pins, workflows, SBOMs, licences, the documentation and its links
	tests/node/apt.sh lint
	python3 -B -m unittest discover --quiet --start-directory hack/lint
	python3 -B -m unittest discover --quiet --start-directory hack/release
	python3 -B -m unittest discover --quiet --start-directory hack/docs
	hack/lint/circles.py
	hack/lint/modules.py
	hack/lint/sizes.py
	hack/lint/lines.py
	hack/lint/doc-comments.py
	hack/lint/rules.py
	hack/lint/pins.py
	hack/version.py --check
	hack/actionlint.sh
	shellcheck --external-sources --source-path=tests/node --severity=warning $$(git ls-files '*.sh' .ci/run)
	@for manifest in Cargo.toml bench/limitador/Cargo.toml fuzz/libfuzzer/Cargo.toml; do \
	  $(CARGO) metadata --locked --format-version 1 --manifest-path $$manifest >/dev/null || exit 1; \
	done
	hack/chart/readme.py --check
	hack/chart/dashboards.py --check
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path bench/limitador/Cargo.toml --check
	$(CARGO) clippy --workspace --all-targets --all-features -- -D warnings
	$(CARGO) clippy -p sluice --no-default-features -- -D warnings
	RUSTDOCFLAGS="-D warnings $(DOC_ALLOWS)" $(CARGO) doc --workspace --all-features --lib --bins --examples --no-deps --document-private-items
	hack/deny.sh
	hack/sbom-check.sh
	hack/openapi.sh
	hack/docs.sh

.PHONY: advisories
advisories: ## Look for known vulnerabilities in the dependencies (fetches RustSec's database from GitHub)
	hack/deny.sh advisories

.PHONY: release
release: ## Build the files of a release in target/release-files, as far as this machine can, and push nothing
	hack/release.sh --dry-run
