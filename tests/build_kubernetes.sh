#!/bin/sh
# Build a real kube-apiserver and kube-scheduler for the tests, from Debian's source package.
#
#   sh tests/build_kubernetes.sh [FOLDER]
#
# FOLDER is where the two programs go: by default PRONTO_KUBERNETES_BIN, or ~/.cache/pronto/kubernetes,
# which is where tests/gates/test_kubernetes_real.py looks. Needs Debian 12 (or a relative of it whose
# source package `kubernetes` is built by Go 1.19), root for apt-get, 4 GB of disk in PRONTO_BUILD_FOLDER
# (default: a new folder in /tmp, removed at the end), and about ten minutes on two cores.
# The system's list of package sources is read, never changed.
set -eu

target=${1:-${PRONTO_KUBERNETES_BIN:-$HOME/.cache/pronto/kubernetes}}
build=${PRONTO_BUILD_FOLDER:-}
if [ -z "$build" ]; then
    build=$(mktemp -d /tmp/pronto-kubernetes.XXXXXX)
    trap 'chmod -R u+w "$build" && rm -rf "$build"' EXIT
fi

say() { echo "build_kubernetes: $*" >&2; }

if [ -x "$target/kube-apiserver" ] && [ -x "$target/kube-scheduler" ] && command -v etcd >/dev/null; then
    say "already built in $target"
    exit 0
fi

missing=
for package in golang-go etcd-server dpkg-dev; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
if [ -n "$missing" ]; then
    say "installing$missing"
    apt-get update -qq
    # shellcheck disable=SC2086  # several names in one word, on purpose
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi

# Source packages by a list of our own, made from the system's.
mkdir -p "$build/sources" "$build/lists/partial" "$build/go/src/k8s.io" "$build/bin"
for list in /etc/apt/sources.list.d/*.sources; do
    [ -e "$list" ] && sed 's/^Types:.*/Types: deb-src/' "$list" >"$build/sources/$(basename "$list")"
done
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [ -e "$list" ] && sed -n 's/^deb /deb-src /p' "$list" >"$build/sources/$(basename "$list" .list)-source.list"
done
apt() {
    apt-get -qq -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$build/sources" \
        -o Dir::State::lists="$build/lists" -o APT::Sandbox::User=root "$@"
}
tree=$build/go/src/k8s.io/kubernetes
if [ ! -e "$tree/cmd/kube-apiserver" ]; then
    say "fetching the source package"
    apt update
    # apt-get has checked what it fetched against the signed archive; the maintainer's own key is not here.
    (cd "$build" && apt source --download-only kubernetes && rm -rf "$tree" &&
        dpkg-source --no-check -x kubernetes_*.dsc "$tree" >/dev/null)
fi

export GOPATH="$build/go" GOCACHE="$build/cache" GO111MODULE=off GOPROXY=off GOFLAGS= CGO_ENABLED=0
cd "$tree"

say "building kube-scheduler"
go build -ldflags '-s -w' -o "$build/bin/kube-scheduler" k8s.io/kubernetes/cmd/kube-scheduler

# The API server needs the descriptions of all its types, which the source package does not ship.
if [ ! -e pkg/generated/openapi/zz_generated.openapi.go ]; then
    say "generating the API's descriptions"
    go build -o "$build/bin/openapi-gen" k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen
    packages=$(
        find -L cmd pkg plugin vendor/k8s.io -name '*.go' -not -name '*_test.go' -not -path '*/_*' \
            -not -path '*/testdata/*' -not -path '*/code-generator/*' -not -path '*/sample-apiserver/*' \
            -exec grep -l '^// +k8s:openapi-gen=' {} + | xargs -n1 dirname | LC_ALL=C sort -u |
            sed 's,^,k8s.io/kubernetes/,' | paste -sd,
    )
    "$build/bin/openapi-gen" -i "$packages" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
        -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$build/violations" 2>"$build/openapi.log" ||
        { tail -5 "$build/openapi.log" >&2; exit 1; }
fi

say "building kube-apiserver"
go build -ldflags '-s -w' -o "$build/bin/kube-apiserver" k8s.io/kubernetes/cmd/kube-apiserver

mkdir -p "$target"
cp "$build/bin/kube-apiserver" "$build/bin/kube-scheduler" "$target"
say "built kube-apiserver and kube-scheduler in $target"
