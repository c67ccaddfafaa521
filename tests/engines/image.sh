#!/bin/sh
# Build the image of deploy/Containerfile without an image registry, on a base made of Debian packages.
#
#   sh tests/engines/image.sh [SUITE]     SUITE: bookworm or trixie
#
# Prints the name of the image in buildah's storage. Needs root, buildah and mmdebstrap.
# The base is kept in PRONTO_TEST_ENGINES (default ~/.cache/pronto/engines).
set -eu
suite=${1:-bookworm}
engines=${PRONTO_TEST_ENGINES:-$HOME/.cache/pronto/engines}
base=$engines/debian-$suite.tar
cd "$(dirname "$0")/../.."

if [ ! -e "$base" ]; then
    echo "image: making a base of Debian $suite" >&2
    mkdir -p "$engines"
    mmdebstrap --quiet --variant=essential --include=python3,python3-venv,libstdc++6,ca-certificates \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' "$suite" "$engines/part-$suite.tar"
    mv "$engines/part-$suite.tar" "$base"
fi

set -- --storage-driver=vfs
container=$(buildah "$@" from scratch)
trap 'buildah --storage-driver=vfs rm "$container" >/dev/null' EXIT
buildah "$@" add --quiet "$container" "$base" / >/dev/null
buildah "$@" commit --quiet "$container" "pronto-base:$suite" >/dev/null
# The machine's own certificates and settings of pip reach the build, and do not stay in the image.
buildah "$@" build --quiet --isolation=chroot --network=host --pull-never \
    --build-arg "BASE=localhost/pronto-base:$suite" \
    --volume /etc/ssl/certs:/etc/ssl/certs:ro \
    --tag "prontosched:$suite" --file deploy/Containerfile . >&2
echo "localhost/prontosched:$suite"
