// A server with Encrypted ClientHello (Go's own crypto/tls), for lab/probe/tests/it/peers.rs.
// Arguments: address, certificate, key, public name.
package main

import (
	"crypto/ecdh"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"net/http"
	"os"
)

func check(err error) {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

func withLength(bytes []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(bytes))), bytes...)
}

func main() {
	address, cert, key, public := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	identity, err := tls.LoadX509KeyPair(cert, key)
	check(err)
	private, err := ecdh.X25519().GenerateKey(rand.Reader)
	check(err)
	// config_id, DHKEM(X25519, HKDF-SHA256), the key, HKDF-SHA256 with AES-128-GCM, maximum_name_length, public_name, extensions.
	contents := append([]byte{7, 0, 0x20}, withLength(private.PublicKey().Bytes())...)
	contents = append(contents, withLength([]byte{0, 1, 0, 1})...)
	contents = append(contents, 32, byte(len(public)))
	contents = append(contents, public...)
	contents = append(contents, 0, 0)
	config := append([]byte{0xfe, 0x0d}, withLength(contents)...)
	server := http.Server{
		Addr:    address,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") }),
		TLSConfig: &tls.Config{
			Certificates:             []tls.Certificate{identity},
			EncryptedClientHelloKeys: []tls.EncryptedClientHelloKey{{Config: config, PrivateKey: private.Bytes(), SendAsRetry: true}},
		},
	}
	check(server.ListenAndServeTLS("", ""))
}
