#!/usr/bin/env bash
# Builds what the tests' Kubernetes cluster consists of, once: its five programs from source as one binary, and etcd, containerd, runc
# and the network plugins from Debian's packages, unpacked and not installed. Takes five minutes on two cores.
#
#   build.sh           builds it unless it is there
#   build.sh --where   prints its folder: ${FATHOM_CACHE:-~/.cache/fathom-test}/kubernetes-HASH, where HASH is of the sources and of Go
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
release=v1.36.3
go=$(command -v go || echo /usr/local/go/bin/go)
hash=$({ cat "$here"/go.mod "$here"/go.sum "$here"/main.go "$here"/pause/main.go "$0"; "$go" env GOVERSION 2>/dev/null || true; } | sha256sum | head -c 16)
folder=${FATHOM_CACHE:-${HOME:-/root}/.cache/fathom-test}/kubernetes-$hash
if [ "${1:-}" = --where ]; then
    echo "$folder"
    exit
fi
[ ! -e "$folder/bin/kubectl" ] || exit 0
if ! "$go" version >/dev/null 2>&1; then
    echo "SKIPPED: the Kubernetes of the tests is not built: it needs Go 1.26" >&2
    exit 0
fi

# It gets its name when it is complete.
part=$folder.part.$$
trap 'rm -rf "$part"' EXIT
mkdir -p "$part/bin" "$part/debs"
version=k8s.io/component-base/version
export CGO_ENABLED=0 GOFLAGS=-mod=readonly GOTOOLCHAIN=local GOTELEMETRY=off
cd "$here"
# The cache of the compiler would take 3 GB.
GOCACHE=$part/gocache nice -n 15 "$go" build -trimpath -buildvcs=false -o "$part/bin/kube-all" \
    -ldflags "-s -w -X $version.gitVersion=$release -X $version.gitMajor=1 -X $version.gitMinor=36" .
GOCACHE=$part/gocache "$go" build -trimpath -buildvcs=false -ldflags "-s -w" -o "$part/bin/pause" ./pause
rm -rf "$part/gocache"
(cd "$part/debs" && apt-get download -qq etcd-server containerd runc containernetworking-plugins)
for deb in "$part"/debs/*.deb; do
    dpkg-deb -x "$deb" "$part/root"
done
rm -rf "$part/debs"
for name in kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl; do
    ln -s kube-all "$part/bin/$name"
done
rm -rf "$folder"
mv "$part" "$folder"
echo "the Kubernetes of the tests is in $folder"
