#!/bin/sh
# Install Pronto from this checkout for all users, or remove it: deploy/install.sh install|uninstall
#
#   PREFIX    folder of its own virtual environment        /opt/pronto
#   BINDIR    where the command is linked                  /usr/local/bin
#   UNITDIR   where the systemd unit goes; empty for none  /etc/systemd/system
#   EXTRAS    extras of the package                        agent
#   PYTHON    interpreter, 3.11 or newer                   /usr/bin/python3
#   DESTDIR   put everything below this folder, for the makers of packages and images
set -eu
cd "$(dirname "$0")/.."
prefix=${PREFIX:-/opt/pronto}
bindir=${BINDIR:-/usr/local/bin}
unitdir=${UNITDIR-/etc/systemd/system}
extras=${EXTRAS:-agent}
root=${DESTDIR:-}
venv=$root$prefix
link=$root$bindir/pronto
unit=$root$unitdir/pronto-agent.service
config=$root/etc/pronto/pronto.toml
share=$root${bindir%/bin}/share
manual=$share/man/man1/pronto.1
completion=$share/bash-completion/completions/pronto

fail() {
    echo "$*" >&2
    exit 1
}

# Whether this is the systemd that the unit was put under.
running() { [ -z "$root" ] && [ "$unitdir" = /etc/systemd/system ] && [ -d /run/systemd/system ]; }

may_write() {
    folder=$1
    while [ ! -e "$folder" ]; do folder=$(dirname "$folder"); done
    [ -w "$folder" ] || fail "$1 must be writable: run as root (sudo make $action), or set PREFIX, BINDIR and UNITDIR"
}

check() {
    case $prefix in /*) ;; *) fail "PREFIX must be an absolute path, got $prefix" ;; esac
    [ ! -e "$venv" ] || [ -e "$venv/.pronto" ] || [ -z "$(ls -A "$venv")" ] ||
        fail "PREFIX must be a folder of Pronto's own, and $venv holds something else: name another"
    [ ! -e "$link" ] || [ "$(readlink "$link")" = "$prefix/bin/pronto" ] ||
        fail "$link is not a link to $prefix/bin/pronto: remove it, or name another BINDIR"
    may_write "$venv"
    may_write "$root$bindir"
    may_write "$share"
}

install_all() {
    check
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        mkdir -p "$(dirname "$venv")"
        PYTHON=${PYTHON:-/usr/bin/python3} sh .ci/find-python "$venv"
        touch "$venv/.pronto"
        new=yes
    fi
    interpreter=$(readlink -f "$venv/bin/python")
    case $interpreter in
    /root/* | /home/*)
        if [ -n "$unitdir" ]; then
            [ -z "${new:-}" ] || rm -rf "$venv"
            fail "the service sees no home folders, and its Python would be $interpreter: set PYTHON to another, such as /usr/bin/python3, or UNITDIR= for no service"
        fi
        ;;
    esac
    echo "installing Pronto in $venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade ".[$extras]"
    mkdir -p "$(dirname "$manual")" "$(dirname "$completion")"
    "$venv/bin/python" -m tools.manpage >"$manual"
    _PRONTO_COMPLETE=bash_source "$venv/bin/pronto" >"$completion"
    if [ -n "$root" ]; then # scripts name their interpreter by its path
        grep -lIF "$venv" "$venv"/bin/* "$venv/pyvenv.cfg" | xargs sed -i "s,$venv,$prefix,g"
    fi
    mkdir -p "$root$bindir"
    ln -sf "$prefix/bin/pronto" "$link"
    echo "linked $link"
    [ -n "$unitdir" ] || return 0
    mkdir -p "$root$unitdir" "$(dirname "$config")"
    sed "s,/opt/pronto/,$prefix/," deploy/systemd/pronto-agent.service >"$unit"
    chmod 644 "$unit"
    [ -e "$config" ] || install -m 644 deploy/systemd/pronto.toml "$config"
    echo "wrote $unit, settings in $config"
    if running; then
        systemctl daemon-reload
        systemctl try-restart pronto-agent
    fi
    echo "to run it from now on: systemctl enable --now pronto-agent"
}

uninstall_all() {
    check
    if running && [ -e "$unit" ]; then
        systemctl disable --quiet --now pronto-agent
    fi
    rm -rf "$venv"
    rm -f "$link" "$manual" "$completion"
    [ -z "$unitdir" ] || rm -f "$unit"
    if running; then
        systemctl daemon-reload
    fi
    echo "gone are $venv, $link and the unit; left are $root/etc/pronto and $root/var/lib/pronto, where they exist"
}

action=${1:-}
case $action in
install) install_all ;;
uninstall) uninstall_all ;;
*) fail "usage: deploy/install.sh install|uninstall" ;;
esac
