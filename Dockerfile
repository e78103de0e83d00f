# The images: one static binary each on nothing at all. The binaries are made outside, by `make images`, which stages
# them in a directory of its own and calls this with that directory as the context; cargo, not the image builder, knows
# what has to be compiled again. With binaries in target/images/bin (`hack/images.sh --no-images`), by hand:
#
#   docker build --target operator -t sluice-operator:dev .
#
# There is no RUN: it builds without a network and without running anything.

# Where the binaries are in the context.
ARG BIN_DIR=target/images/bin

FROM scratch AS cli
ARG BIN_DIR
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="sluice" \
      org.opencontainers.image.description="The command of Sluice: check policies, run the proxy by itself" \
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
