#!/bin/sh
# Makes an authority, the certificates of the services and their passwords, each once: what is there stays.
# Arguments are further names under which other machines reach this one. Needs openssl; run it as root.
#
#   ./setup/secrets.sh [NAME...]
set -eu
umask 077
cd "$(dirname "$0")/../secrets"
mkdir -p certificates

for name in elastic_password kibana_password shipper_password kibana_key; do
    [ -s "$name" ] || openssl rand -hex 32 | tr -d '\n' > "$name"
done

if [ ! -s certificates/ca.crt ]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1825 -subj "/CN=probe-logs" \
        -keyout certificates.key -out certificates/ca.crt 2> /dev/null
fi
for name in elasticsearch logstash kibana filebeat; do
    [ -s "certificates/$name.crt" ] && continue
    names="DNS:$name,DNS:localhost,IP:127.0.0.1"
    for other in "$@"; do names="$names,DNS:$other"; done
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$name" \
        -keyout "certificates/$name.key" -out "$name.csr" 2> /dev/null
    printf 'subjectAltName=%s\n' "$names" > "$name.ext"
    openssl x509 -req -days 825 -in "$name.csr" -CA certificates/ca.crt -CAkey certificates.key -CAcreateserial \
        -extfile "$name.ext" -out "certificates/$name.crt" 2> /dev/null
    rm "$name.csr" "$name.ext"
done
# The services run as user 1000; Elasticsearch takes a password only from a file of mode 0600 or 0400.
chmod 0600 certificates/*.key elastic_password kibana_password shipper_password kibana_key
chmod 0644 certificates/*.crt
chmod 0700 certificates
if [ "$(id -u)" = 0 ]; then
    chown -R 1000 certificates elastic_password kibana_password shipper_password kibana_key
else
    echo "run: sudo chown -R 1000 certificates *_password kibana_key    (in $(pwd))" >&2
fi
