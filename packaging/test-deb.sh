#!/usr/bin/env bash
# The life of the package: build it, twice; install it into a scratch folder, use
# it, upgrade it, remove it, purge it; and look at what is there after each step.
# Once with systemd's tools and once without. `make deb-test` calls it.
#
# dpkg works below a folder, and so do our maintainer scripts, by DPKG_ROOT:
# nothing of this machine is touched, and no container is needed. What this does
# not show is a running systemd: the scripts leave services alone there.
# LINTIAN=1 has lintian look at it too.
set -euo pipefail
umask 022
cd "$(dirname "$0")/.."

if ! command -v dpkg >/dev/null; then
	echo "deb-test: SKIPPED: there is no dpkg here, so the package was not tested"
	exit 0
fi
if [ "$(id -u)" != 0 ]; then
	if command -v fakeroot >/dev/null; then
		exec fakeroot "$0" "$@"
	fi
	echo "deb-test: SKIPPED: it needs root, or fakeroot; the package was not tested"
	exit 0
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export VERSION=${VERSION:-devel}
dist=${DIST:-dist}
arch=$(dpkg --print-architecture)

fail() {
	echo "deb-test: $*" >&2
	exit 1
}

same() { # WHAT WANT HAVE
	[ "$2" = "$3" ] || fail "$1:"$'\n'"want $2"$'\n'"have $3"
}

echo "deb-test: versions sort as the commits do"
before=
while read -r description want; do
	have=$(packaging/version.sh "$description" 20260131093000)
	same "the version of $description" "$want" "$have"
	dpkg --validate-version "$have"
	[ -z "$before" ] || dpkg --compare-versions "$before" lt "$have" || fail "$before does not come before $have"
	before=$have
done <<'END'
abc1234                 0~20260131093000.gabc1234
abc1234-dirty           0~20260131093000.gabc1234+dirty
nightly-3-gabc1235      0~20260131093000.gabc1235
v1.2.3-rc.1             1.2.3~rc.1
v1.2.3-rc.1-2-gabc1234  1.2.3~rc.1+2.gabc1234
v1.2.3                  1.2.3
v1.2.3-dirty            1.2.3+0.dirty
v1.2.3-5-gabc1234       1.2.3+5.gabc1234
v1.2.3-10-gfff1234      1.2.3+10.gfff1234
v1.2.4                  1.2.4
END
same "the version without git" 0~devel "$(packaging/version.sh devel)"

echo "deb-test: the same commit gives the same package"
packaging/deb.sh "$arch"
package=$(ls -t "$dist"/edge-consumer_*_"$arch".deb | head -1)
(umask 077 && DIST=$scratch/again packaging/deb.sh "$arch" >/dev/null)
cmp "$package" "$scratch/again/${package##*/}" || fail "two builds differ"

echo "deb-test: what is in the packages"
version=$(dpkg-deb -f "$package" Version)
for p in "$dist"/edge-consumer_"$version"_*.deb; do
	a=$(dpkg-deb -f "$p" Architecture)
	dpkg-deb --fsys-tarfile "$p" | tar -xOf - ./usr/bin/edge-consumer >"$scratch/program"
	case $a in # e_machine of ELF
	amd64) machine=003e ;; arm64) machine=00b7 ;; armhf) machine=0028 ;; *) fail "the architecture $a" ;;
	esac
	same "the machine of $p" "$machine" "$(od -An -tx2 -j18 -N2 "$scratch/program" | tr -d ' ')"
	[ "$(wc -c <"$scratch/program")" -lt 35000000 ] || fail "the program in $p has more than 35 MB"
	same "the owners in $p" root/root "$(dpkg-deb -c "$p" | awk '{print $2}' | sort -u)"
	same "the conffiles of $p" /etc/default/edge-consumer "$(dpkg-deb -I "$p" conffiles)"
done

# root is the folder that a package is installed into; its files have the
# numbers of its own users.
root=
dpkg_() {
	dpkg --root="$root" --log=/dev/null --force-script-chrootless --force-depends --force-unsafe-io "$@" >"$scratch/out" 2>&1 || {
		cat "$scratch/out"
		fail "dpkg $*"
	}
}
said() { grep -q "$1" "$scratch/out" || { cat "$scratch/out"; fail "dpkg did not say: $1"; }; }
said_not() { ! grep -q "$1" "$scratch/out" || { cat "$scratch/out"; fail "dpkg said: $1"; }; }
is() { # MODE OWNER PATH
	same "mode and owner of $3" "$1 $2" "$(stat -c '%a %u:%g' "$root$3")"
}
gone() { for path; do [ ! -e "$root$path" ] && [ ! -L "$root$path" ] || fail "$path is still there"; done; }
state() { same "the state" "$1" "$(dpkg-query --admindir="$root/var/lib/dpkg" -Wf '${db:Status-Status}' edge-consumer 2>/dev/null || echo not-installed)"; }

# The program is static: it runs in a folder where there is nothing else.
program() {
	if [ -n "${FAKED_MODE:-}" ]; then
		"$root/usr/bin/edge-consumer" "${@//@/$root}" # fakeroot cannot change the root
	else
		chroot "$root" /usr/bin/edge-consumer "${@//@/}"
	fi
}

life() {
	root=$scratch/root
	rm -rf "$root"
	mkdir -p "$root"/var/lib/dpkg/{info,updates,triggers} "$root"/{etc,tmp}
	touch "$root/var/lib/dpkg/status" "$root"/etc/{passwd,group,shadow,gshadow}
	link=/etc/systemd/system/multi-user.target.wants/edge-consumer.service

	dpkg_ -i "$package"
	state installed
	said 'there is no configuration yet'
	ids=$(sed -n 's/^edge-consumer:[^:]*:\([0-9]*:[0-9]*\):[^:]*:\/var\/lib\/edge-consumer:\/usr\/sbin\/nologin$/\1/p' "$root/etc/passwd")
	[ -n "$ids" ] || fail "no user: $(cat "$root/etc/passwd")"
	gid=${ids#*:}
	is 755 0:0 /usr/bin/edge-consumer
	is 644 0:0 /usr/lib/systemd/system/edge-consumer.service
	is 644 0:0 /usr/lib/sysusers.d/edge-consumer.conf
	is 644 0:0 /usr/lib/tmpfiles.d/edge-consumer.conf
	is 640 0:0 /etc/default/edge-consumer
	is 750 "0:$gid" /etc/edge-consumer
	is 700 "$ids" /var/lib/edge-consumer
	same "/etc/edge-consumer is empty" "" "$(ls -A "$root/etc/edge-consumer")"
	if command -v systemctl >/dev/null; then
		[ -L "$root$link" ] || fail "the service is not enabled"
	fi
	gzip -t "$root"/usr/share/man/man1/edge-consumer*.1.gz "$root/usr/share/doc/edge-consumer/changelog.gz"
	bash -n "$root/usr/share/bash-completion/completions/edge-consumer"
	grep -q '^#compdef edge-consumer' "$root/usr/share/zsh/vendor-completions/_edge-consumer"
	grep -q 'complete -c edge-consumer' "$root/usr/share/fish/vendor_completions.d/edge-consumer.fish"
	grep -q 'modernc.org/sqlite@' "$root/usr/share/doc/edge-consumer/copyright"
	program version >"$scratch/version"
	grep -qxF "edge-consumer $VERSION" "$scratch/version" || fail "the program has another version: $(cat "$scratch/version")"
	program check -c @/usr/share/doc/edge-consumer/examples/edge.yaml >/dev/null
	program test -c @/usr/share/doc/edge-consumer/examples/edge.yaml >/dev/null

	# An operator: a configuration, data, and the one conffile changed.
	program init @/etc/edge-consumer >/dev/null 2>&1
	sed -i 's|path: edge.db|path: /var/lib/edge-consumer/edge.db|' "$root/etc/edge-consumer/edge.yaml"
	program check -c @/etc/edge-consumer/edge.yaml >/dev/null
	echo data >"$root/var/lib/edge-consumer/edge.db"
	echo 'EDGE_LOG_LEVEL=debug' >"$root/etc/default/edge-consumer"
	rm -f "$root$link" # systemctl disable

	dpkg_ -i "$package" # an upgrade
	state installed
	said_not 'there is no configuration yet'
	is 640 "0:$gid" /etc/edge-consumer/edge.yaml
	is 700 "$ids" /var/lib/edge-consumer
	gone "$link" # an upgrade does not enable it again
	same "the conffile" 'EDGE_LOG_LEVEL=debug' "$(cat "$root/etc/default/edge-consumer")"
	same "one user" 1 "$(grep -c '^edge-consumer:' "$root/etc/passwd")"

	dpkg_ -r edge-consumer
	state config-files
	gone /usr/bin/edge-consumer /usr/lib/systemd/system/edge-consumer.service /usr/share/doc/edge-consumer
	same "the conffile" 'EDGE_LOG_LEVEL=debug' "$(cat "$root/etc/default/edge-consumer")"
	same "the data" data "$(cat "$root/var/lib/edge-consumer/edge.db")"

	dpkg_ -P edge-consumer
	state not-installed
	said '/var/lib/edge-consumer is kept'
	same "what is left" './etc/edge-consumer/edge.yaml
./etc/edge-consumer/edge_test.yaml
./etc/edge-consumer/migrations/0001_orders.sql
./var/lib/edge-consumer/edge.db' "$(cd "$root" && find . \( -type f -o -type l \) -not -path './var/lib/dpkg/*' \
		-not -path './etc/*passwd*' -not -path './etc/*group*' -not -path './etc/*shadow*' -not -path './etc/.*' | LC_ALL=C sort)"
	is 700 "$ids" /var/lib/edge-consumer
	grep -q '^edge-consumer:' "$root/etc/passwd" || fail "the user is gone"

	# Once more, with nothing of an operator's in it.
	rm -r "$root/etc/edge-consumer" "$root/var/lib/edge-consumer"
	dpkg_ -i "$package"
	is 700 "$ids" /var/lib/edge-consumer
	dpkg_ -P edge-consumer
	gone /etc/edge-consumer /var/lib/edge-consumer /etc/default/edge-consumer "$link"
}

if command -v systemd-sysusers >/dev/null && command -v systemctl >/dev/null; then
	echo "deb-test: install, upgrade, remove, purge"
	life
else
	echo "deb-test: SKIPPED: the life with systemd, which is not here"
fi

echo "deb-test: the same without systemd"
mkdir "$scratch/bin"
for dir in /bin /sbin /usr/bin /usr/sbin /usr/local/bin; do
	find "$dir/" -maxdepth 1 -not -type d -exec ln -sf -t "$scratch/bin" {} +
done
rm -f "$scratch"/bin/{systemd-*,systemctl,deb-systemd-*}
PATH=$scratch/bin life

# Not always: it takes longer than all the rest.
if [ -n "${LINTIAN:-}" ]; then
	echo "deb-test: lintian"
	# Static is meant; the licences of modules are given in full, as they ask for.
	lintian --allow-root --fail-on error --tag-display-limit 0 \
		--suppress-tags statically-linked-binary,copyright-file-contains-full-apache-2-license "$package"
fi
echo "deb-test: ok"
