#!/bin/sh
# Print the package's copyright file: the project's state, and the licences of
# everything that is linked into the program, which ask to go with it.
set -eu
cd "$(dirname "$0")/.."

cat <<'END'
edge-consumer is made from the module edge.example/inbox. Its owner has not
chosen a licence yet: without one, nobody else may distribute it.

The program contains the Go standard library and the modules below, under these
licences.
END

licence() { # NAME FOLDER
	for file in "$2"/LICENSE* "$2"/LICENCE* "$2"/COPYING* "$2"/NOTICE*; do
		if [ -f "$file" ]; then
			printf '\n==== %s: %s\n\n' "$1" "${file##*/}"
			tr -d '\r' <"$file"
		fi
	done
}

licence go "$(go env GOROOT)"
# For Linux, wherever this runs.
GOOS=linux GOARCH=amd64 CGO_ENABLED=0 go list -deps \
	-f '{{with .Module}}{{if not .Main}}{{.Path}}@{{.Version}} {{.Dir}}{{end}}{{end}}' ./cmd/edge-consumer |
	LC_ALL=C sort -u |
	while read -r module dir; do
		licence "$module" "$dir"
	done
