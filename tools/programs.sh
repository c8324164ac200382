#!/bin/sh
# Sees to it that programs exist which tests and benchmarks run for real.
# usage: tools/programs.sh PROGRAM=DEBIAN_PACKAGE...
set -eu

programs=
packages=
for pair in "$@"; do
    if ! command -v "${pair%%=*}" >/dev/null; then
        programs="$programs ${pair%%=*}"
        packages="$packages ${pair#*=}"
    fi
done
# shellcheck disable=SC2086 # one argument per package
[ -z "$packages" ] || sh "$(dirname "$0")/debian.sh" "missing:$programs" $packages
