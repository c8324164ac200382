#!/bin/sh
# Installs Debian packages as root; otherwise prints the command that would, and fails.
# usage: tools/debian.sh REASON PACKAGE...
set -eu

reason=$1
shift
if ! command -v apt-get >/dev/null; then
    echo "$reason. Install what Debian calls: $*" >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "$reason. Run:" >&2
    echo "sudo apt-get install $*" >&2
    exit 1
fi
echo "$reason. Installing with apt-get: $*"
apt-get -qq update
DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "$@" >/dev/null </dev/null
