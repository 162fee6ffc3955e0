#!/bin/sh
# Remake the payloads and the LICENSE in this directory.
# Needs npm, node and tar. The versions are pinned, so every run writes the
# same bytes.
set -eu

examples=@octokit/webhooks-examples@7.6.1
licence=@octokit/webhooks-definitions@3.68.1 # same project; it ships the text

here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# get PACKAGE DIR unpacks a package from npm into DIR.
get() {
	mkdir "$2"
	(cd "$2" && npm pack --loglevel=error "$1" >/dev/null && tar -xzf ./*.tgz)
}

get "$examples" "$tmp/examples"
get "$licence" "$tmp/licence"

node "$here/make.mjs" "$tmp/examples/package/api.github.com/index.json" "$here"
cat "$tmp/licence/package/LICENSE" >"$here/LICENSE"
