#!/bin/sh
# Makes a certificate for the names in haproxy.cfg, and an authority for its servers, to try the guide without real ones.
set -eu
umask 077 # private keys
mkdir -p certificates
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=example.com \
    -addext 'subjectAltName=DNS:example.com,DNS:*.example.com,DNS:www.shop.example.com,DNS:*.sites.example.com' \
    -addext basicConstraints=critical,CA:FALSE \
    -keyout certificates/key.pem -out certificates/example.com.pem 2>/dev/null
cat certificates/key.pem >> certificates/example.com.pem
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj '/CN=internal' \
    -keyout certificates/internal-key.pem -out certificates/internal-ca.pem 2>/dev/null
