package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/quic-go/quic-go/qlog"
)

// The cases of the QUIC interoperability runner, for tests/interop/tests/it/quic_interop.rs. The client does a job, and prints what it
// has found out, one fact per line, and "all is well". With QLOGDIR in its environment, each side writes a log per connection there.

const (
	largeLength  = 600_000
	uploadLength = 400_000
)

// Go has no setting for these. The library keeps the variable where it is for quic-go.
//
//go:linkname defaultCipherSuitesTLS13 crypto/tls.defaultCipherSuitesTLS13
var defaultCipherSuitesTLS13 []uint16

//go:linkname defaultCipherSuitesTLS13NoAES crypto/tls.defaultCipherSuitesTLS13NoAES
var defaultCipherSuitesTLS13NoAES []uint16

func onlyChaCha20() {
	defaultCipherSuitesTLS13 = []uint16{tls.TLS_CHACHA20_POLY1305_SHA256}
	defaultCipherSuitesTLS13NoAES = defaultCipherSuitesTLS13
}

// Bytes that tell their places: numbers of 32 bits, one after the other.
func content(length int) []byte {
	var bytes []byte
	for n := range length / 4 {
		bytes = binary.BigEndian.AppendUint32(bytes, uint32(n))
	}
	return bytes
}

func sum(body []byte) string { return fmt.Sprintf("%x", sha256.Sum256(body)) }

// Tells when a ticket has come.
type tickets struct {
	tls.ClientSessionCache
	put chan struct{}
}

func (t tickets) Put(key string, state *tls.ClientSessionState) {
	t.ClientSessionCache.Put(key, state)
	if state != nil {
		select {
		case t.put <- struct{}{}:
		default:
		}
	}
}

type interop struct {
	address  string
	trust    *tls.Config
	config   *quic.Config
	versions []quic.Version
}

// A connection of its own for what is asked for over this transport.
func (i *interop) connect() (*http3.Transport, func() *quic.Conn) {
	var last *quic.Conn
	transport := &http3.Transport{TLSClientConfig: i.trust, QUICConfig: i.config}
	transport.Dial = func(ctx context.Context, _ string, trust *tls.Config, config *quic.Config) (*quic.Conn, error) {
		remote, err := net.ResolveUDPAddr("udp4", i.address)
		check(err)
		if i.versions != nil {
			// Its HTTP/3 takes one version only.
			config = config.Clone()
			config.Versions = i.versions
		}
		last, err = udp().DialEarly(ctx, remote, trust, config)
		return last, err
	}
	return transport, func() *quic.Conn { return last }
}

func udp() *quic.Transport {
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	check(err)
	return &quic.Transport{Conn: socket}
}

func request(transport *http3.Transport, method, path string, body []byte) []byte {
	ctx, cancel := context.WithTimeout(context.Background(), 150*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "https://localhost"+path, bytes.NewReader(body))
	check(err)
	response, err := transport.RoundTrip(request)
	check(err)
	answer, err := io.ReadAll(response.Body)
	check(err)
	if response.StatusCode != 200 || response.ProtoMajor != 3 {
		check(fmt.Errorf("%s %s: %s %s", method, path, response.Proto, response.Status))
	}
	return answer
}

func get(transport *http3.Transport) {
	if answer := request(transport, "GET", "/", nil); string(answer) != "hello" {
		check(fmt.Errorf("GET /: %q", answer))
	}
}

func large(transport *http3.Transport) {
	if answer := request(transport, "GET", "/large", nil); !bytes.Equal(answer, content(largeLength)) {
		check(fmt.Errorf("GET /large: %d bytes", len(answer)))
	}
}

func transfer(transport *http3.Transport) {
	large(transport)
	upload := content(uploadLength)
	if answer := request(transport, "POST", "/upload", upload); string(answer) != sum(upload) {
		check(fmt.Errorf("POST /upload: %q", answer))
	}
}

func interopClient(job, address, ca string) {
	pem, err := os.ReadFile(ca)
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	cache := tickets{tls.NewLRUClientSessionCache(8), make(chan struct{}, 1)}
	i := &interop{
		address: address,
		trust:   &tls.Config{RootCAs: roots, ClientSessionCache: cache},
		config: &quic.Config{
			Tracer:               qlog.DefaultConnectionTracer,
			HandshakeIdleTimeout: 60 * time.Second,
			MaxIdleTimeout:       90 * time.Second,
		},
	}
	switch job {
	case "chacha":
		onlyChaCha20()
	case "negotiate":
		i.versions = []quic.Version{quic.Version2, quic.Version1}
	}
	transport, connection := i.connect()
	switch job {
	case "get", "chacha", "negotiate":
		get(transport)
	case "transfer":
		transfer(transport)
	case "keys":
		// quic-go changes its keys after a hundred packets.
		transfer(transport)
	case "many":
		var all sync.WaitGroup
		for range 200 {
			all.Go(func() { get(transport) })
		}
		all.Wait()
	case "connections":
		for range 10 {
			get(transport)
			check(transport.Close())
			transport, connection = i.connect()
		}
		get(transport)
	case "resume", "early":
		get(transport)
		<-cache.put
		check(transport.Close())
		transport, connection = i.connect()
		method := "GET"
		if job == "early" {
			method = http3.MethodGet0RTT
		}
		if answer := request(transport, method, "/", nil); string(answer) != "hello" {
			check(fmt.Errorf("GET /: %q", answer))
		}
		<-connection().HandshakeComplete()
	case "migrate":
		get(transport)
		path, err := connection().AddPath(udp())
		check(err)
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		defer cancel()
		check(path.Probe(ctx))
		check(path.Switch())
		transfer(transport)
		fmt.Println("moved: True")
	default:
		check(fmt.Errorf("there is no job %q", job))
	}
	state := connection().ConnectionState()
	fmt.Printf("cipher: %s\n", tls.CipherSuiteName(state.TLS.CipherSuite))
	fmt.Printf("version: %d\n", state.Version)
	fmt.Printf("resumed: %s\nearly: %s\n", word(state.TLS.DidResume), word(state.Used0RTT))
	check(transport.Close())
	// The log is written when the connection has ended.
	<-connection().Context().Done()
	fmt.Println("all is well")
}

// As Python writes it.
func word(is bool) string {
	if is {
		return "True"
	}
	return "False"
}

func interopServer(mode, address, cert, key string) {
	identity, err := tls.LoadX509KeyPair(cert, key)
	check(err)
	local, err := net.ResolveUDPAddr("udp4", address)
	check(err)
	socket, err := net.ListenUDP("udp4", local)
	check(err)
	config := &quic.Config{
		Allow0RTT: true, Tracer: qlog.DefaultConnectionTracer,
		HandshakeIdleTimeout: 60 * time.Second, MaxIdleTimeout: 90 * time.Second,
	}
	switch mode {
	case "chacha":
		onlyChaCha20()
	case "version2":
		config.Versions = []quic.Version{quic.Version2}
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.Header().Set("X-Over", "h3")
		w.Header().Set("X-Cipher", tls.CipherSuiteName(r.TLS.CipherSuite))
		w.Header().Set("X-Resumed", word(r.TLS.DidResume))
		switch r.URL.Path {
		case "/large":
			w.Write(content(largeLength))
		case "/upload":
			io.WriteString(w, sum(body))
		default:
			io.WriteString(w, "hello")
		}
	})
	server := &http3.Server{Handler: handler}
	transport := &quic.Transport{Conn: socket, VerifySourceAddress: func(net.Addr) bool { return mode == "retry" }}
	trust := http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{identity}})
	listener, err := transport.ListenEarly(trust, config)
	check(err)
	fmt.Println("ready")
	check(server.ServeListener(listener))
}
