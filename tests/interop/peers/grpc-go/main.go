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
	"strconv"
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

// Message number n of a stream of tiny ones: one byte, which tells its place in the stream.
func tiny(n int) []byte { return []byte{byte(n % 251)} }

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

// The request says how many messages, how many microseconds apart, and perhaps that they are tiny.
func down(_ any, stream grpc.ServerStream) error {
	var request []byte
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	var count, pause int
	if _, err := fmt.Sscan(string(request), &count, &pause); err != nil {
		return err
	}
	content := message
	if strings.HasSuffix(string(request), " tiny") {
		content = tiny
	}
	for n := range count {
		out := content(n)
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

// The release that calls ask for by `x-release`, if it is not empty.
var release string

func open(ctx context.Context, connection *grpc.ClientConn, name string) grpc.ClientStream {
	if release != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "x-release", release)
	}
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
		name, value, _ := strings.Cut(part, "=")
		if name == "release" {
			release = value
			continue
		}
		count, err := strconv.Atoi(value)
		check(err)
		began := time.Now()
		switch name {
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
		case "tiny":
			for _, stream := range []func(*grpc.ClientConn, int) error{tinyUp, tinyDown, tinyBoth, tinyLockstep} {
				check(stream(connection, count))
			}
		case "cut":
			cut(connection, time.Duration(count)*time.Millisecond)
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

// Receives the messages of a stream of tiny ones, and its end.
func expectTiny(stream grpc.ClientStream, count int) error {
	for n := range count {
		var got []byte
		if err := stream.RecvMsg(&got); err != nil {
			return fmt.Errorf("message %d: %w", n, err)
		}
		if !bytes.Equal(got, tiny(n)) {
			return fmt.Errorf("message %d is %v", n, got)
		}
	}
	var got []byte
	if err := stream.RecvMsg(&got); err != io.EOF {
		return fmt.Errorf("behind %d messages: %v, %w", count, got, err)
	}
	return nil
}

func tinyUp(connection *grpc.ClientConn, count int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	stream := open(ctx, connection, "Up")
	for n := range count {
		out := tiny(n)
		if stream.SendMsg(&out) != nil {
			// The receiver is told why.
			break
		}
	}
	_ = stream.CloseSend()
	var answer []byte
	if err := stream.RecvMsg(&answer); err != nil {
		return err
	}
	if string(answer) != fmt.Sprint(count, count) {
		return fmt.Errorf("of %d messages came %q", count, answer)
	}
	return nil
}

func tinyDown(connection *grpc.ClientConn, count int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	stream := open(ctx, connection, "Down")
	request := fmt.Appendf(nil, "%d 0 tiny", count)
	check(stream.SendMsg(&request))
	check(stream.CloseSend())
	return expectTiny(stream, count)
}

// As fast as both ends can.
func tinyBoth(connection *grpc.ClientConn, count int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	stream := open(ctx, connection, "Both")
	go func() {
		for n := range count {
			out := tiny(n)
			if stream.SendMsg(&out) != nil {
				return
			}
		}
		_ = stream.CloseSend()
	}()
	return expectTiny(stream, count)
}

// Each message is sent when the one before has come back: a tenth of the others, as each takes a round trip.
func tinyLockstep(connection *grpc.ClientConn, count int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	stream := open(ctx, connection, "Both")
	for n := range count / 10 {
		out := tiny(n)
		check(stream.SendMsg(&out))
		var got []byte
		if err := stream.RecvMsg(&got); err != nil {
			return fmt.Errorf("message %d: %w", n, err)
		}
		if !bytes.Equal(got, out) {
			return fmt.Errorf("message %d is %v", n, got)
		}
	}
	check(stream.CloseSend())
	return expectTiny(stream, 0)
}

// A route has this time for Down, and none for Both: a stream of Down ends by it however busy it is, no earlier, and a stream of Both
// beside it goes on.
func cut(connection *grpc.ClientConn, limit time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	lasting := open(ctx, connection, "Both")
	exchange := func(n int) {
		out := tiny(n)
		check(lasting.SendMsg(&out))
		var got []byte
		check(lasting.RecvMsg(&got))
		expect(bytes.Equal(got, out), "message %d is %v", n, got)
	}
	exchange(0)
	for _, pause := range []int{0, 1000} {
		began := time.Now()
		stream := open(ctx, connection, "Down")
		request := fmt.Appendf(nil, "1000000000 %d tiny", pause)
		check(stream.SendMsg(&request))
		check(stream.CloseSend())
		count := 0
		var err error
		for ; err == nil; count++ {
			var got []byte
			if err = stream.RecvMsg(&got); err == nil {
				expect(bytes.Equal(got, tiny(count)), "message %d is %v", count, got)
			}
			if count%100 == 0 {
				exchange(count)
			}
		}
		code := status.Code(err)
		expect(code != codes.Unavailable && code != codes.DeadlineExceeded, "the connection has ended, or it never ends: %v", err)
		expect(time.Since(began) >= limit, "cut after %v: %v", time.Since(began), err)
		expect(count > 1, "nothing came: %v", err)
		exchange(count)
	}
	check(lasting.CloseSend())
	check(expectTiny(lasting, 0))
}
