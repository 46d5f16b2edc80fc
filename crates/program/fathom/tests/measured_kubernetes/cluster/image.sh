#!/usr/bin/env bash
# Packs images without a registry, as `ctr images import` reads them: image.sh PAUSE FATHOM OUT.tar
# `localhost/fathom:test` has the program with the libraries that it is linked to; `localhost/pause:test` is for the sandboxes of pods.
set -euo pipefail
pause=$1 fathom=$2 out=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

layer() { # NAME: packs $work/NAME as $work/NAME.tar, and prints its digest
    tar --sort=name --mtime=@0 --owner=0 --group=0 -C "$work/$1" -cf "$work/$1.tar" .
    sha256sum "$work/$1.tar" | cut -d' ' -f1
}

config() { # NAME DIGEST COMMAND
    printf '{"architecture":"%s","os":"linux","config":{"Env":["PATH=/usr/bin"],"Entrypoint":["%s"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
        "$(dpkg --print-architecture)" "$3" "$2" >"$work/$1.json"
}

install -D "$pause" "$work/pause/usr/bin/pause"
install -D "$fathom" "$work/fathom/usr/bin/fathom"
install -d -m 1777 "$work/fathom/tmp"
# The libraries as `ldd` names them, each at its own path: the loader last.
ldd "$fathom" | grep -o '/[^ ]*' | while read -r library; do
    install -D "$(readlink -f "$library")" "$work/fathom/$library"
done
config pause "$(layer pause)" /usr/bin/pause
config fathom "$(layer fathom)" /usr/bin/fathom
cat >"$work/manifest.json" <<JSON
[{"Config":"pause.json","RepoTags":["localhost/pause:test"],"Layers":["pause.tar"]},
 {"Config":"fathom.json","RepoTags":["localhost/fathom:test"],"Layers":["fathom.tar"]}]
JSON
tar -C "$work" -cf "$out" manifest.json pause.json fathom.json pause.tar fathom.tar
