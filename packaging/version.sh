#!/bin/sh
# Turn what `git describe --tags --always --dirty` says into a Debian version,
# one that sorts as the commits do:
#
#   v1.2.3-rc.1            1.2.3~rc.1            before the release
#   v1.2.3                 1.2.3
#   v1.2.3-5-gabc1234      1.2.3+5.gabc1234      after it, before 1.2.4
#   abc1234 (no tag)       0~20260131093000.gabc1234, the time of the commit
#   devel (no git)         0~devel
#
# usage: version.sh DESCRIPTION [TIME-OF-THE-COMMIT]
set -eu

description=$1
time=${2:-}

case $description in
v[0-9]*.*)
	# The first "-" that is left begins a pre-release; "-" is for Debian's revisions.
	echo "$description" | sed -E '
		s/^v//
		s/-([0-9]+)-g([0-9a-f]+)(-dirty)?$/+\1.g\2\3/
		/\+/s/-dirty$/+dirty/
		s/-dirty$/+0.dirty/
		s/-/~/
		s/-/./g'
	;;
*)
	commit=$(echo "$description" | sed -E 's/^.*-g([0-9a-f]+)(-dirty)?$/\1\2/; s/-/+/g')
	if [ "$commit" = devel ]; then
		echo 0~devel
	else
		echo "0~${time:-0}.g$commit"
	fi
	;;
esac
