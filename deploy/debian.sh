#!/bin/sh
# Build a Debian package of this checkout, for the release of Debian that this runs on:
#
#   make deb                      writes dist/prontosched_VERSION_ARCHITECTURE.deb
#
# The package holds the same as `make install`: /opt/pronto, the command in /usr/bin, the unit
# (not enabled) and /etc/pronto/pronto.toml. Needs python3, python3-venv and dpkg-deb.
set -eu
cd "$(dirname "$0")/.."
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
chmod 755 "$stage"
python=${PYTHON:-/usr/bin/python3}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
series=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
following=$("$python" -c 'import sys; print("%d.%d" % (sys.version_info[0], sys.version_info[1] + 1))')
architecture=$(dpkg --print-architecture)

DESTDIR=$stage BINDIR=/usr/bin UNITDIR=/usr/lib/systemd/system PYTHON=$python sh deploy/install.sh install >&2
# Compiled by the machine that installs it would be files that the package does not know.
"$stage/opt/pronto/bin/python" -m compileall -q -s "$stage" "$stage/opt/pronto/lib" || true
mkdir -p "$stage/DEBIAN"
cat >"$stage/DEBIAN/control" <<END
Package: prontosched
Version: $version
Architecture: $architecture
Maintainer: Pronto maintainers <root@localhost>
Depends: python3 (>= $series), python3 (<< $following)
Installed-Size: $(du -sk "$stage/opt" | cut -f1)
Section: admin
Priority: optional
Description: CPU contention forecast of a node, for schedulers
 The agent watches this machine, says how likely another job would meet CPU
 contention, and lets Slurm, Kubernetes, HTCondor, LSF or Dask act on it.
 To run it: systemctl enable --now pronto-agent
END
echo /etc/pronto/pronto.toml >"$stage/DEBIAN/conffiles"
cat >"$stage/DEBIAN/postinst" <<'END'
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    systemctl try-restart pronto-agent
fi
END
cat >"$stage/DEBIAN/prerm" <<'END'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --quiet --now pronto-agent
fi
END
cat >"$stage/DEBIAN/postrm" <<'END'
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
if [ "$1" = purge ]; then
    rm -rf /etc/pronto /var/lib/pronto /var/lib/private/pronto /opt/pronto
fi
END
chmod 755 "$stage/DEBIAN/postinst" "$stage/DEBIAN/prerm" "$stage/DEBIAN/postrm"
mkdir -p dist
file=dist/prontosched_${version}_$architecture.deb
dpkg-deb --root-owner-group --build "$stage" "$file" >&2
echo "$file"
