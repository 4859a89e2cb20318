#!/bin/sh
# Makes a certificate for the names in nginx.conf, to try the guide without those of a real site.
set -eu
umask 077 # private keys
mkdir -p certificates
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=example.com \
    -addext 'subjectAltName=DNS:example.com,DNS:*.example.com,DNS:www.shop.example.com,DNS:*.sites.example.com' \
    -keyout certificates/example.com-key.pem -out certificates/example.com.pem 2>/dev/null
