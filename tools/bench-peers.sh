#!/bin/sh
# Installs peers for the benchmarks, each into an environment of its own: .bench-venv/NAME below the working directory.
# One that is there as asked for is left alone. usage: tools/bench-peers.sh PYTHON NAME=PIP_REQUIREMENT...
set -eu

python=$1
shift
for pair in "$@"; do
    name=${pair%%=*}
    requirement=${pair#*=}
    place=.bench-venv/$name
    # Written last, so an installation that broke off is made again.
    mark=$place/.installed
    if [ "$(cat "$mark" 2>/dev/null)" = "$requirement" ]; then
        echo "$name: $requirement is there"
        continue
    fi
    echo "$name: installing $requirement into $place"
    started_s=$(date +%s)
    "$python" -m venv --clear "$place"
    "$place/bin/python" -m pip install -qq "$requirement"
    "$place/bin/python" -m pip check
    echo "$requirement" >"$mark"
    echo "$name: $(du -sh "$place" | cut -f1), $(($(date +%s) - started_s)) s"
done
