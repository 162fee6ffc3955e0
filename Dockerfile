# edge-consumer in a container: one static binary and certificates, no shell.
#
#   docker build --build-arg VERSION=v1.2.3 -t edge-consumer .
#   docker run -v orders:/var/lib/edge-consumer -v ./edge.yaml:/etc/edge-consumer/edge.yaml:ro edge-consumer
#
# The database goes into the volume, which must be on a local disk. To be
# scraped from outside, the configuration must listen on 0.0.0.0 and set a token.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=devel
ARG TARGETOS
ARG TARGETARCH
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
        -ldflags "-s -w -X main.version=$VERSION" -o /out/edge-consumer ./cmd/edge-consumer \
    && mkdir /out/data

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/edge-consumer /usr/bin/edge-consumer
# A new volume takes the owner of what it covers.
COPY --from=build --chown=65532:65532 /out/data /var/lib/edge-consumer
USER 65532:65532
# SQLite keeps large temporary files here, for there is no /tmp.
WORKDIR /var/lib/edge-consumer
VOLUME /var/lib/edge-consumer
EXPOSE 9464
# Opening the file may bring its schema up to date, which takes time.
HEALTHCHECK --interval=30s --timeout=5s --start-period=15m --retries=3 \
    CMD ["/usr/bin/edge-consumer", "healthcheck", "-c", "/etc/edge-consumer/edge.yaml"]
ENTRYPOINT ["/usr/bin/edge-consumer"]
CMD ["run", "-c", "/etc/edge-consumer/edge.yaml"]
