#!/bin/sh
# Ours against the peers, side by side: builds fathom, then compares. Options are those of compare.py.
set -eu
cd "$(dirname "$0")/.."
${CARGO:-cargo} build --release --package fathom
exec python3 bench/compare.py --write "$@"
