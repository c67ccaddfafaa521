#!/bin/sh
# Build govmomi's vCenter simulator for the tests, from Debian's packages.
#
#   sh tests/engines/vcsim.sh [FILE]
#
# FILE is where the program goes: by default PRONTO_VCSIM, or ~/.cache/pronto/vcsim, which is where
# tests/telemetry/test_vsphere.py looks. Needs Debian 12 (or a relative of it), root for apt-get where the
# packages are not there yet, 300 MB of disk in /tmp, and about a minute on two cores.
set -eu

target=${1:-${PRONTO_VCSIM:-$HOME/.cache/pronto/vcsim}}
say() { echo "vcsim: $*" >&2; }

if [ -x "$target" ]; then
    say "already built: $target"
    exit 0
fi

missing=
for package in golang-go golang-github-vmware-govmomi-dev golang-github-google-uuid-dev golang-github-davecgh-go-xdr-dev; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
if [ -n "$missing" ]; then
    say "installing$missing"
    apt-get update -qq
    # shellcheck disable=SC2086  # several names in one word, on purpose
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi

build=$(mktemp -d /tmp/pronto-vcsim.XXXXXX)
trap 'chmod -R u+w "$build" && rm -rf "$build"' EXIT
cat > "$build/main.go" <<'GO'
// A vCenter with two hosts and four virtual machines, on the loopback address given.
package main

import (
	"crypto/tls"
	"fmt"
	"net/url"
	"os"

	"github.com/vmware/govmomi/simulator"
)

func main() {
	model := simulator.VPX()
	model.Datacenter, model.Cluster, model.ClusterHost, model.Host, model.Machine = 1, 1, 2, 0, 2
	if err := model.Create(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer model.Remove()
	model.Service.Listen = &url.URL{Host: os.Args[1], User: url.UserPassword("tester", "secret")}
	model.Service.TLS = new(tls.Config)
	server := model.Service.NewServer()
	defer server.Close()
	fmt.Println(server.URL.Host)
	// Until standard input is closed, so that it never outlives a test.
	os.Stdin.Read(make([]byte, 1))
}
GO
say "building (about a minute)"
cd "$build"
GO111MODULE=off GOPROXY=off GOFLAGS= CGO_ENABLED=0 GOPATH="$build/go:/usr/share/gocode" GOCACHE="$build/cache" \
    go build -o "$build/vcsim" "$build/main.go"
mkdir -p "$(dirname "$target")"
mv "$build/vcsim" "$target"
say "built $target"
