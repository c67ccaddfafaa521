#!/bin/sh
# Make what agents and extender need to trust each other, and hand it to the cluster:
# a token, an authority, and one certificate for all agents in the name `pronto-agent`.
#
#   sh make-secrets.sh            creates the secrets with kubectl
#   sh make-secrets.sh FOLDER     only writes the files, for other ways of getting them there
set -eu
umask 077
folder=${1:-}
if [ -z "$folder" ]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    apply=yes
fi
mkdir -p "$folder"
cd "$folder"

openssl rand -hex 32 >token
openssl req -x509 -newkey rsa:3072 -nodes -days 3650 -subj /CN=pronto -keyout ca.key -out ca.crt \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign 2>/dev/null
openssl req -newkey rsa:3072 -nodes -subj /CN=pronto-agent -keyout tls.key -out agent.csr 2>/dev/null
cat >agent.ext <<END
subjectAltName=DNS:pronto-agent
extendedKeyUsage=serverAuth
basicConstraints=CA:FALSE
END
openssl x509 -req -in agent.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 825 -extfile agent.ext -out tls.crt \
    2>/dev/null
rm -f agent.csr agent.ext ca.srl

if [ "${apply:-no}" = yes ]; then
    kubectl -n pronto create secret generic pronto-agent --from-file=token --from-file=tls.crt --from-file=tls.key
    kubectl -n pronto create secret generic pronto-extender --from-file=token --from-file=ca.crt
    echo "made the secrets pronto-agent and pronto-extender; the authority's key was not kept" >&2
fi
