# Each image holds one static binary and its SBOM, and nothing else. There is no base image, so none must be pinned or
# updated; the libraries in a binary are in its SBOM. `make images` builds the binaries outside, because cargo knows
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
      dev.sluice.sbom="/sluice.cdx.json" \
      org.opencontainers.image.description="The Sluice command line: checks policies and runs the proxy without Kubernetes" \
      org.opencontainers.image.source="https://github.com/sluice-dev/sluice" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY ${BIN_DIR}/sluice ${BIN_DIR}/sluice.cdx.json /
USER 65532:65532
ENTRYPOINT ["/sluice"]

FROM scratch AS sidecar
ARG BIN_DIR
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="sluice-sidecar" \
      dev.sluice.sbom="/sluice-sidecar.cdx.json" \
      org.opencontainers.image.description="The data plane of Sluice" \
      org.opencontainers.image.source="https://github.com/sluice-dev/sluice" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY ${BIN_DIR}/sluice-sidecar ${BIN_DIR}/sluice-sidecar.cdx.json /
USER 65532:65532
ENTRYPOINT ["/sluice-sidecar"]

FROM scratch AS service
ARG BIN_DIR
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="sluice-service" \
      dev.sluice.sbom="/sluice-service.cdx.json" \
      org.opencontainers.image.description="The service of Sluice, which takes the place of envoyproxy/ratelimit" \
      org.opencontainers.image.source="https://github.com/sluice-dev/sluice" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY ${BIN_DIR}/sluice-service ${BIN_DIR}/sluice-service.cdx.json /
# Has the link /bin/ratelimit, which is what those who run ratelimit call. A link by itself would be followed.
COPY ${BIN_DIR}/links /
USER 65532:65532
ENTRYPOINT ["/sluice-service"]

FROM scratch AS operator
ARG BIN_DIR
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="sluice-operator" \
      dev.sluice.sbom="/sluice-operator.cdx.json" \
      org.opencontainers.image.description="The operator of Sluice" \
      org.opencontainers.image.source="https://github.com/sluice-dev/sluice" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY ${BIN_DIR}/sluice-operator ${BIN_DIR}/sluice-operator.cdx.json /
USER 65532:65532
ENTRYPOINT ["/sluice-operator"]
