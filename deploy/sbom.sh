#!/bin/sh
# List what an installation of this checkout is made of, with versions and licences:
#
#   make sbom          writes dist/prontosched-VERSION.cdx.json (CycloneDX)
#
#   EXTRAS    extras of the package     agent
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
sh .ci/find-python "$work/installed"
"$work/installed/bin/python" -m pip install --quiet --disable-pip-version-check ".[${EXTRAS:-agent}]"
sh .ci/find-python "$work/tool"
"$work/tool/bin/python" -m pip install --quiet --disable-pip-version-check cyclonedx-bom
mkdir -p dist
"$work/tool/bin/cyclonedx-py" environment --pyproject pyproject.toml --output-reproducible --of JSON \
    --output-file "dist/prontosched-$version.cdx.json" "$work/installed/bin/python"
echo "dist/prontosched-$version.cdx.json"
