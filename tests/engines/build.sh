#!/bin/sh
# Build the programs that tests run against and that Debian does not have in these versions.
#
#   sh tests/engines/build.sh                 all of them (about forty minutes on two cores)
#   sh tests/engines/build.sh helm etcd       some of them
#   sh tests/engines/build.sh kubernetes-1.37.1    one version of Kubernetes
#
# They are built by Go from its module proxy, in pinned versions, into PRONTO_TEST_ENGINES (default
# ~/.cache/pronto/engines), where the tests look. What is built already is left alone; to build
# it again, remove its file there. Needs Go 1.26 and 6 GB of disk.
set -eu

target=${PRONTO_TEST_ENGINES:-$HOME/.cache/pronto/engines}
kubernetes_versions="1.37.1 1.36.4"

say() { echo "engines: $*" >&2; }

# module NAME: an empty module to build in.
module() {
    build=$(mktemp -d "${TMPDIR:-/tmp}/pronto-engines.XXXXXX")
    trap 'rm -rf "$build"' EXIT
    cd "$build"
    go mod init "$1" 2>/dev/null
}

# program NAME PACKAGE MODULE@VERSION
program() {
    if [ -x "$target/$1" ]; then
        say "$1 is built"
        return
    fi
    say "building $1 from $3"
    (
        module "$1"
        go get "$2@${3#*@}" >/dev/null 2>&1 || go get "$3" >/dev/null
        CGO_ENABLED=0 go build -mod=mod -trimpath -ldflags="-s -w" -o "$target/$1" "$2"
    )
}

# The staging modules of Kubernetes are published apart, as v0.MINOR.PATCH.
kubernetes() {
    folder=$target/kubernetes-$1
    if [ -x "$folder/kube-controller-manager" ]; then
        say "Kubernetes $1 is built"
        return
    fi
    say "building Kubernetes $1"
    mkdir -p "$folder"
    (
        module kubernetes
        requirements=$(go mod download -json "k8s.io/kubernetes@v$1" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
        sed -n 's|^\s*\(k8s.io/[a-z-]*\) => ./staging/.*|\1|p' "$requirements" | while read -r staged; do
            go mod edit -replace "$staged=$staged@v0.${1#*.}"
        done
        go mod edit -require "k8s.io/kubernetes@v$1"
        for command in kube-apiserver kube-scheduler kube-controller-manager; do
            CGO_ENABLED=0 go build -mod=mod -trimpath \
                -ldflags="-s -w -X k8s.io/component-base/version.gitVersion=v$1" \
                -o "$folder/" "k8s.io/kubernetes/cmd/$command"
        done
    )
}

# With the stages that let nodes and pods behave as with a kubelet.
kwok() {
    program kwok sigs.k8s.io/kwok/cmd/kwok sigs.k8s.io/kwok@v0.8.0
    source=$(go mod download -json sigs.k8s.io/kwok@v0.8.0 | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
    for file in "$source"/kustomize/stage/node/fast/node-*.yaml "$source"/kustomize/stage/pod/fast/pod-*.yaml; do
        echo ---
        cat "$file"
    done >"$target/kwok-stages.yaml"
}

# Only the definitions of its kinds: an API server takes a PodMonitor by them.
prometheus_operator() {
    folder=$target/prometheus-operator
    say "fetching the definitions of the Prometheus operator"
    source=$(go mod download -json "github.com/prometheus-operator/prometheus-operator@v0.85.0" |
        sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
    mkdir -p "$folder"
    for kind in podmonitors prometheusrules; do
        install -m 644 "$source/jsonnet/prometheus-operator/$kind-crd.json" "$folder/"
    done
}

one() {
    case $1 in
    kubernetes) for version in $kubernetes_versions; do kubernetes "$version"; done ;;
    kubernetes-*) kubernetes "${1#kubernetes-}" ;;
    etcd) program etcd go.etcd.io/etcd/server/v3 go.etcd.io/etcd/server/v3@v3.7.3 ;;
    helm) program helm helm.sh/helm/v4/cmd/helm helm.sh/helm/v4@v4.3.1 ;;
    kwok) kwok ;;
    nats-server) program nats-server github.com/nats-io/nats-server/v2 github.com/nats-io/nats-server/v2@v2.15.2 ;;
    prometheus-operator) prometheus_operator ;;
    *)
        say "no program '$1': kubernetes, etcd, helm, kwok, nats-server, prometheus-operator"
        exit 2
        ;;
    esac
}

mkdir -p "$target"
[ $# -gt 0 ] || set -- etcd helm kwok nats-server prometheus-operator kubernetes
for name in "$@"; do
    one "$name"
done
