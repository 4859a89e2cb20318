// Go's HTTP server, which says in `x-arrived` what has arrived: see `src/differential`. The arguments are a port for HTTP/1.1, and a
// port, a certificate and a key for HTTP/2.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strconv"
)

func fields(header http.Header) [][2]string {
	list := [][2]string{}
	for name, values := range header {
		for _, value := range values {
			list = append(list, [2]string{hex.EncodeToString([]byte(name)), hex.EncodeToString([]byte(value))})
		}
	}
	return list
}

func arrive(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	sum := sha256.Sum256(body)
	headers := append(fields(r.Header), [2]string{hex.EncodeToString([]byte("host")), hex.EncodeToString([]byte(r.Host))})
	arrived, _ := json.Marshal(map[string]any{
		"method":   hex.EncodeToString([]byte(r.Method)),
		"target":   hex.EncodeToString([]byte(r.RequestURI)),
		"headers":  headers,
		"trailers": fields(r.Trailer),
		"length":   len(body),
		"sha256":   hex.EncodeToString(sum[:]),
	})
	status := 200
	if answer := r.Header.Get("x-answer"); answer != "" {
		status, _ = strconv.Atoi(answer)
	}
	w.Header().Set("x-arrived", string(arrived))
	bare := r.Method == "HEAD" || status == 204 || status == 304
	if !bare {
		w.Header().Set("content-length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(status)
	if !bare {
		w.Write(body)
	}
}

func main() {
	go func() {
		panic(http.ListenAndServeTLS("127.0.0.1:"+os.Args[2], os.Args[3], os.Args[4], http.HandlerFunc(arrive)))
	}()
	panic(http.ListenAndServe("127.0.0.1:"+os.Args[1], http.HandlerFunc(arrive)))
}
