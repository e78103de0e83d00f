# Each image holds one static binary and nothing else. `make images` builds the binaries outside, because cargo knows
# what must be compiled again and the image builder does not, and passes a directory with them as the context. To build
# an image by hand from the binaries in target/images/bin (`hack/images.sh --no-images`):
#
#   docker build --target operator -t sluice-operator:dev .
#
# There is no RUN instruction: the build needs no network and runs no program.

# Directory of the binaries in the context.
ARG BIN_DIR=target/images/bin

FROM scratch AS cli
ARG BIN_DIR
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="sluice" \
      org.opencontainers.image.description="The Sluice command line: checks policies and runs the proxy without Kubernetes" \
      org.opencontainers.image.source="https://github.com/sluice-dev/sluice" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY ${BIN_DIR}/sluice /sluice
USER 65532:65532
ENTRYPOINT ["/sluice"]

FROM scratch AS sidecar
ARG BIN_DIR
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="sluice-sidecar" \
      org.opencontainers.image.description="The data plane of Sluice" \
      org.opencontainers.image.source="https://github.com/sluice-dev/sluice" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY ${BIN_DIR}/sluice-sidecar /sluice-sidecar
USER 65532:65532
ENTRYPOINT ["/sluice-sidecar"]

FROM scratch AS operator
ARG BIN_DIR
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="sluice-operator" \
      org.opencontainers.image.description="The operator of Sluice" \
      org.opencontainers.image.source="https://github.com/sluice-dev/sluice" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY ${BIN_DIR}/sluice-operator /sluice-operator
USER 65532:65532
ENTRYPOINT ["/sluice-operator"]
