#!/bin/sh
# Installs the load generators that benchmarks/client.py compares with, each into an environment of its own: those that
# come with the real engines, those of tools.clients, and inference-perf, which needs a Python of 3.12 or newer: the
# first of python3.12, python3.13, python3.14 and pyenv's that works. usage: tools/load-peers.sh PYTHON
set -eu

python=$1
"$python" -m tools.engines vllm sglang
"$python" -m tools.clients guidellm aiperf
for newer in python3.12 python3.13 python3.14 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python; do
    if "$newer" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then
        exec sh tools/bench-peers.sh "$newer" inference-perf=inference-perf==0.7.0
    fi
done
echo "inference-perf: not installable here: there is no Python of 3.12 or newer"
