// quic-go as an HTTP/3 client of the gateway and as a server behind it, for tests/interop/tests/it/h3_peers.rs.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

func check(err error) {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

func main() {
	switch os.Args[1] {
	case "client":
		client(os.Args[2], os.Args[3])
	case "server":
		server(os.Args[2], os.Args[3], os.Args[4])
	case "interop-client":
		interopClient(os.Args[2], os.Args[3], os.Args[4])
	case "interop-server":
		interopServer(os.Args[2], os.Args[3], os.Args[4], os.Args[5])
	}
}

// Requests one after the other, at once, up and down, with trailers; then one in early data of a second connection.
func client(base, ca string) {
	pem, err := os.ReadFile(ca)
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	trust := &tls.Config{RootCAs: roots, ClientSessionCache: tls.NewLRUClientSessionCache(8)}
	transport := &http3.Transport{TLSClientConfig: trust}
	client := &http.Client{Transport: transport, Timeout: 30 * time.Second}
	for i := 0; i < 5; i++ {
		response, err := client.Get(fmt.Sprintf("%s/%d", base, i))
		check(err)
		body, err := io.ReadAll(response.Body)
		check(err)
		if response.StatusCode != 200 || response.ProtoMajor != 3 || string(body) != "0" {
			check(fmt.Errorf("%s %s %q", response.Proto, response.Status, body))
		}
	}
	upload := bytes.Repeat([]byte("0123456789abcdef"), 100000)
	var all sync.WaitGroup
	for i := 0; i < 30; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			request, err := http.NewRequest("POST", base+"/upload", bytes.NewReader(upload[:i*50000]))
			check(err)
			response, err := client.Do(request)
			check(err)
			body, err := io.ReadAll(response.Body)
			check(err)
			if string(body) != fmt.Sprint(i*50000) {
				check(fmt.Errorf("upload of %d: %q", i*50000, body))
			}
		}()
	}
	all.Wait()
	// A body of unknown length with trailers.
	request, err := http.NewRequest("POST", base+"/upload", io.MultiReader(strings.NewReader("hello")))
	check(err)
	request.Trailer = http.Header{"X-Sum": {"42"}}
	response, err := client.Do(request)
	check(err)
	body, err := io.ReadAll(response.Body)
	check(err)
	if string(body) != "5" || response.Trailer.Get("X-Sum") != "42" {
		check(fmt.Errorf("trailers: %q %v", body, response.Trailer))
	}
	// One that is called off in the middle does no harm to the next.
	ctx, cancel := context.WithCancel(context.Background())
	request, _ = http.NewRequestWithContext(ctx, "GET", base+"/large", nil)
	response, err = client.Do(request)
	check(err)
	_, err = io.ReadFull(response.Body, make([]byte, 1000))
	check(err)
	cancel()
	response, err = client.Get(base + "/large")
	check(err)
	sum := sha256.New()
	_, err = io.Copy(sum, response.Body)
	check(err)
	check(transport.Close())
	again := &http3.Transport{TLSClientConfig: trust, QUICConfig: &quic.Config{}}
	request, _ = http.NewRequest(http3.MethodGet0RTT, base+"/early", nil)
	response, err = again.RoundTrip(request)
	check(err)
	if response.StatusCode != 200 {
		check(fmt.Errorf("early: %s", response.Status))
	}
	fmt.Printf("early %v %x\n", response.TLS != nil && response.TLS.DidResume, sum.Sum(nil))
	check(again.Close())
}

// Says what it was asked; `/large` is a megabyte; every answer has a trailer.
func server(address, cert, key string) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			return
		}
		w.Header().Set("Trailer", "X-Trailer")
		w.Header().Set("X-Over", r.Proto)
		if r.URL.Path == "/large" {
			w.Write(bytes.Repeat([]byte("x"), 1000000))
		} else {
			fmt.Fprintf(w, "%s %s %d", r.Method, r.URL.Path, n)
		}
		w.Header().Set("X-Trailer", "1")
	})
	fmt.Println("ready")
	check((&http3.Server{Addr: address, Handler: handler}).ListenAndServeTLS(cert, key))
}
