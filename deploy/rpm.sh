#!/bin/sh
# Build an RPM of this checkout, for the distribution that this runs on:
#
#   make rpm                             writes dist/prontosched-VERSION-1.ARCHITECTURE.rpm
#   make rpm PYTHON=/usr/bin/python3.11  where the distribution's own python3 is older than 3.11
#
# The package holds the same as `make install`: /opt/pronto, the command in /usr/bin, the unit
# (not enabled) and /etc/pronto/pronto.toml. Needs Python with venv, and rpmbuild.
set -eu
cd "$(dirname "$0")/.."
command -v rpmbuild >/dev/null || {
    echo "rpmbuild must be on PATH: install rpm-build (Fedora, RHEL, SUSE) or rpm (Debian)" >&2
    exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=$(readlink -f "${PYTHON:-/usr/bin/python3}")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
mkdir -p dist
rpmbuild -bb --build-in-place --quiet \
    --define "pronto_version $version" --define "pronto_python $python" \
    --define "_topdir $work" --define "_rpmdir $PWD/dist" --define "_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" \
    deploy/prontosched.spec >&2
ls "dist/prontosched-$version-1."*.rpm
