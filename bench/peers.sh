#!/bin/sh
# Installs the tools that fathom is compared with. They come from Debian; netperf stands in its non-free component, which is
# read from a copy of this machine's own sources for this one installation and enabled nowhere.
set -eu

apt-get update
apt-get install --yes --no-install-recommends \
    apache2-utils hey iperf3 netsniff-ng nghttp2-client nginx-light openssl strace wrk

command -v netperf >/dev/null && exit 0
copy=$(mktemp --directory)
trap 'rm -rf "$copy"' EXIT
mkdir -p "$copy/parts" "$copy/lists/partial"
for file in /etc/apt/sources.list.d/*.sources; do
    [ -e "$file" ] && sed 's/^Components:.*/Components: main non-free/' "$file" >"$copy/parts/$(basename "$file")"
done
[ -e /etc/apt/sources.list ] && sed -n 's/^\(deb .* main\).*/\1 non-free/p' /etc/apt/sources.list >"$copy/parts/own.list"
with_non_free() {
    apt-get -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$copy/parts" -o Dir::State::lists="$copy/lists" "$@"
}
if ! { with_non_free update && with_non_free install --yes --no-install-recommends netperf; }; then
    echo "netperf cannot be had: its rows will say so" >&2
fi
