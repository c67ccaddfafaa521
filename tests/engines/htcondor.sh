#!/bin/sh
# Make a Debian 13 tree with HTCondor for the tests: tests/engines/htcondor.sh FOLDER
#
# Debian 12 has no package of HTCondor. Needs root, debootstrap and a Debian mirror;
# takes about two minutes and 700 MB. Then run the tests with
#   PRONTO_TEST_HTCONDOR=FOLDER python -m pytest tests/gates/test_htcondor.py
# Nothing stays mounted; remove FOLDER when done.
set -eu

folder=${1:?usage: tests/engines/htcondor.sh FOLDER}
[ -e "$folder/etc/debian_version" ] || debootstrap --variant=minbase trixie "$folder"
if [ ! -x "$folder/usr/bin/condor_version" ]; then
    chroot "$folder" apt-get update -q
    chroot "$folder" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends htcondor
fi
# HTCondor runs no jobs of root or of its own user.
chroot "$folder" id tester >/dev/null 2>&1 || chroot "$folder" useradd -m tester
chroot "$folder" condor_version
