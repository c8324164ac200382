#!/bin/sh
# Makes .venv, in the working directory, from the Python given and requirements.lock; mends it when it exists.
# usage: tools/environment.sh PYTHON
set -eu

python=$1
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    found=$("$python" --version 2>/dev/null) || found="not to be found"
    echo "weir needs Python 3.11 or newer; $python is $found." >&2
    echo "Name one that is: make PYTHON=/path/to/python3.12" >&2
    exit 1
fi

if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        sh tools/debian.sh "$python cannot make virtual environments" "python$version-venv"
    fi
    echo "Making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv
fi

echo "Installing requirements.lock into .venv (about a minute the first time)"
.venv/bin/python -m pip install --quiet --require-hashes --requirement requirements.lock
.venv/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
.venv/bin/python -m pip check
