// grpc-go as a client of the gateway and as a server behind it, for tests/interop/tests/it/grpc_streams.rs. Messages are
// plain bytes, so that grpcio speaks the same service without generated code.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
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
		client(os.Args[2], os.Args[3], os.Args[4:])
	case "server":
		server(os.Args[2], os.Args[3:])
	}
}

// Passes bytes through.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(data)
	return nil
}
func (raw) Name() string { return "raw" }

// The size of message number n: most have a few bytes, some a KiB, few 16 KiB, and one in 5,000 a MiB.
func size(n int) int {
	switch {
	case n%5000 == 4999:
		return 1 << 20
	case n%100 == 99:
		return 16 << 10
	case n%10 == 9:
		return 1024 + n%777
	}
	return 1 + n%7
}

var filler = bytes.Repeat([]byte("x"), 1<<20)

func message(n int) []byte { return filler[:size(n)] }

func server(address string, files []string) {
	var options []grpc.ServerOption
	if len(files) == 2 {
		identity, err := credentials.NewServerTLSFromFile(files[0], files[1])
		check(err)
		options = append(options, grpc.Creds(identity))
	}
	options = append(options, grpc.ForceServerCodec(raw{}))
	server := grpc.NewServer(options...)
	stream := func(name string, handler grpc.StreamHandler) grpc.StreamDesc {
		return grpc.StreamDesc{StreamName: name, Handler: handler, ServerStreams: true, ClientStreams: true}
	}
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "t.T",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Unary", Handler: unary}},
		Streams:     []grpc.StreamDesc{stream("Up", up), stream("Down", down), stream("Both", both)},
	}, nil)
	listener, err := net.Listen("tcp", address)
	check(err)
	check(server.Serve(listener))
}

func unary(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	var request []byte
	if err := decode(&request); err != nil {
		return nil, err
	}
	switch string(request) {
	case "fail":
		return nil, status.Error(codes.FailedPrecondition, "as you wish")
	case "wait":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	_ = grpc.SetTrailer(ctx, metadata.Pairs("x-sum", "42"))
	return &request, nil
}

func up(_ any, stream grpc.ServerStream) error {
	count, sum := 0, 0
	for {
		var message []byte
		err := stream.RecvMsg(&message)
		if err == io.EOF {
			answer := fmt.Appendf(nil, "%d %d", count, sum)
			return stream.SendMsg(&answer)
		}
		if err != nil {
			return err
		}
		count++
		sum += len(message)
	}
}

// The request says how many messages, and how many microseconds apart.
func down(_ any, stream grpc.ServerStream) error {
	var request []byte
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	var count, pause int
	if _, err := fmt.Sscan(string(request), &count, &pause); err != nil {
		return err
	}
	for n := range count {
		out := message(n)
		if err := stream.SendMsg(&out); err != nil {
			return err
		}
		time.Sleep(time.Duration(pause) * time.Microsecond)
	}
	return nil
}

func both(_ any, stream grpc.ServerStream) error {
	for {
		var message []byte
		err := stream.RecvMsg(&message)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.SendMsg(&message); err != nil {
			return err
		}
	}
}

var call = grpc.ForceCodec(raw{})

func expect(ok bool, format string, values ...any) {
	if !ok {
		check(fmt.Errorf(format, values...))
	}
}

func echo(connection *grpc.ClientConn, request []byte, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var answer []byte
	var trailer metadata.MD
	if err := connection.Invoke(ctx, "/t.T/Unary", &request, &answer, call, grpc.Trailer(&trailer)); err != nil {
		return err
	}
	if !bytes.Equal(request, answer) || strings.Join(trailer.Get("x-sum"), "") != "42" {
		return fmt.Errorf("%d bytes became %d, trailers %v", len(request), len(answer), trailer)
	}
	return nil
}

func open(ctx context.Context, connection *grpc.ClientConn, name string) grpc.ClientStream {
	stream, err := connection.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/t.T/"+name, call)
	check(err)
	return stream
}

// All calls go through one connection: what ends it ends each of them.
func client(target, ca string, parts []string) {
	pem, err := os.ReadFile(ca)
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	trust := credentials.NewTLS(&tls.Config{RootCAs: roots})
	connection, err := grpc.NewClient("passthrough:///"+target, grpc.WithTransportCredentials(trust))
	check(err)
	for _, part := range parts {
		fields := strings.Split(part, "=")
		var count int
		if len(fields) == 2 {
			_, err := fmt.Sscan(fields[1], &count)
			check(err)
		}
		began := time.Now()
		switch fields[0] {
		case "unary":
			for n := range count {
				check(echo(connection, message(n), time.Minute))
			}
		case "up":
			sendUp(connection, count)
		case "down":
			receive(connection, count, 0)
		case "paced":
			// 150 messages per second, while other calls go on.
			receive(connection, count*150, 1_000_000/150)
		case "both":
			sendBoth(connection, count)
		case "lockstep":
			lockstep(connection, count)
		case "ended":
			ended(connection, count)
		}
		fmt.Println(part, time.Since(began).Round(time.Millisecond))
	}
	fmt.Println("all is well")
}

func sendUp(connection *grpc.ClientConn, count int) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	stream := open(ctx, connection, "Up")
	sum := 0
	for n := range count {
		out := message(n)
		sum += len(out)
		check(stream.SendMsg(&out))
	}
	check(stream.CloseSend())
	var answer []byte
	check(stream.RecvMsg(&answer))
	expect(string(answer) == fmt.Sprint(count, sum), "up: %q", answer)
}

func receive(connection *grpc.ClientConn, count, pause int) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	stream := open(ctx, connection, "Down")
	request := fmt.Appendf(nil, "%d %d", count, pause)
	check(stream.SendMsg(&request))
	check(stream.CloseSend())
	for n := range count {
		var got []byte
		check(stream.RecvMsg(&got))
		expect(len(got) == size(n), "message %d has %d bytes", n, len(got))
	}
	var got []byte
	expect(stream.RecvMsg(&got) == io.EOF, "more than %d messages", count)
}

func sendBoth(connection *grpc.ClientConn, count int) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	stream := open(ctx, connection, "Both")
	go func() {
		for n := range count {
			out := message(n)
			if stream.SendMsg(&out) != nil {
				// The receiver is told why.
				return
			}
		}
		_ = stream.CloseSend()
	}()
	for n := range count {
		var got []byte
		check(stream.RecvMsg(&got))
		expect(len(got) == size(n), "message %d has %d bytes", n, len(got))
	}
	var got []byte
	expect(stream.RecvMsg(&got) == io.EOF, "more than %d messages", count)
}

// Each message is sent when the one before has come back.
func lockstep(connection *grpc.ClientConn, count int) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	stream := open(ctx, connection, "Both")
	for n := range count {
		out := message(n)
		check(stream.SendMsg(&out))
		var got []byte
		check(stream.RecvMsg(&got))
		expect(len(got) == len(out), "message %d has %d bytes", n, len(got))
	}
	check(stream.CloseSend())
}

// Calls that end by deadline, by cancellation and by status, beside one stream that outlives them all.
func ended(connection *grpc.ClientConn, count int) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	lasting := open(ctx, connection, "Both")
	exchange := func() {
		out := []byte("still there")
		check(lasting.SendMsg(&out))
		var got []byte
		check(lasting.RecvMsg(&got))
	}
	exchange()
	for range count / 20 {
		var all sync.WaitGroup
		for range 20 {
			all.Add(3)
			go func() {
				defer all.Done()
				err := echo(connection, []byte("wait"), 50*time.Millisecond)
				expect(status.Code(err) == codes.DeadlineExceeded, "a deadline: %v", err)
			}()
			go func() {
				defer all.Done()
				err := echo(connection, []byte("fail"), time.Minute)
				expect(status.Code(err) == codes.FailedPrecondition, "a status: %v", err)
			}()
			go func() {
				defer all.Done()
				ctx, cancel := context.WithCancel(context.Background())
				stream := open(ctx, connection, "Down")
				request := []byte("1000000 100")
				check(stream.SendMsg(&request))
				var got []byte
				check(stream.RecvMsg(&got))
				cancel()
				for {
					if err := stream.RecvMsg(&got); err != nil {
						expect(status.Code(err) == codes.Canceled || errors.Is(err, io.EOF), "a cancellation: %v", err)
						return
					}
				}
			}()
		}
		all.Wait()
		exchange()
	}
	check(lasting.CloseSend())
	var got []byte
	expect(lasting.RecvMsg(&got) == io.EOF, "the lasting stream does not end")
}
