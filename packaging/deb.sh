#!/bin/sh
# Build the Debian packages into dist/: deb.sh [amd64|arm64|armhf ...], all by
# default. `make deb` calls it; VERSION is the version to write into the program.
#
# nfpm puts them together, not dpkg-deb: all it needs is Go, so that a package
# can be built on a machine without dpkg, and by root or anybody else; and its
# version is ours, whereas each dpkg-deb compresses as its distribution likes.
#
# The same commit gives the same packages, whoever builds them and when: all
# files have the time of the commit and belong to root.
set -eu
umask 022
cd "$(dirname "$0")/.."

NFPM=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.48.0
VERSION=${VERSION:-devel}
dist=${DIST:-dist}
if [ $# = 0 ]; then
	set -- amd64 arm64 armhf
fi

SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
committed=$(TZ=UTC git log -1 --format=%cd --date=format-local:%Y%m%d%H%M%S 2>/dev/null || true)
DEB_VERSION=$(packaging/version.sh "$VERSION" "$committed")
export SOURCE_DATE_EPOCH DEB_VERSION CGO_ENABLED=0

# What is the same for all machines. nfpm.yaml names these files.
STAGE=$dist/stage
export STAGE
rm -rf "$STAGE"
mkdir -p "$STAGE/man" "$STAGE/completions"
for shell in bash zsh fish; do
	go run -trimpath ./cmd/edge-consumer completion "$shell" >"$STAGE/completions/$shell"
done
for page in packaging/man/*.1; do
	gzip -9nc "$page" >"$STAGE/man/${page##*/}.gz"
done
gzip -9nc CHANGELOG.md >"$STAGE/changelog.gz"
packaging/copyright.sh >"$STAGE/copyright"

for arch; do
	case $arch in
	armhf) goarch=arm ;;
	*) goarch=$arch ;;
	esac
	DEB_ARCH=$arch
	BINARY=$STAGE/$arch/edge-consumer
	export DEB_ARCH BINARY
	GOOS=linux GOARCH=$goarch GOARM=7 go build -trimpath -buildvcs=false \
		-ldflags "-s -w -X main.version=$VERSION" -o "$BINARY" ./cmd/edge-consumer
	package=$dist/edge-consumer_${DEB_VERSION}_$arch.deb
	go run "$NFPM" package -f packaging/nfpm.yaml -p deb -t "$package" >/dev/null
	echo "$package: $(($(wc -c <"$package") / 1024)) KiB, the program $(($(wc -c <"$BINARY") / 1024)) KiB"
done
