// Command kmsdouble stands in for the KMS client of Talos: a double, and named one. Talos' own Go
// modules are not on the module proxy that this workplace has, so what is real here is what lies under
// them: google.golang.org/grpc and crypto/tls, which Talos' client is built on. The service, its two methods,
// the fields of its messages, the root certificates as the only trust and the ten seconds are Talos'
// contract, written from its documents.
//
// usage: kmsdouble seal|unseal HOST:PORT CA.pem UUID HEX
//
// Prints "ok HEX", or "refused CODE TEXT" with the gRPC code, and ends with 0 either way; another end
// means that there was no call.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// request is sidero.kms.Request: string node_uuid = 1, bytes data = 2.
type request struct {
	nodeUUID string
	data     []byte
}

// response is sidero.kms.Response: bytes data = 1.
type response struct{ data []byte }

// codec writes and reads the two messages; its name is what a protobuf client sends.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) ([]byte, error) {
	r, ok := v.(*request)
	if !ok {
		return nil, fmt.Errorf("not a request: %T", v)
	}
	b := protowire.AppendTag(nil, 1, protowire.BytesType)
	b = protowire.AppendString(b, r.nodeUUID)
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	return protowire.AppendBytes(b, r.data), nil
}

func (codec) Unmarshal(b []byte, v any) error {
	r, ok := v.(*response)
	if !ok {
		return fmt.Errorf("not a response: %T", v)
	}
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if number != 1 || kind != protowire.BytesType {
			return errors.New("a field that the contract does not have")
		}
		data, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		r.data = append([]byte(nil), data...)
		b = b[n:]
	}
	return nil
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "kmsdouble:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 5 {
		return errors.New("usage: kmsdouble seal|unseal HOST:PORT CA.pem UUID HEX")
	}
	method := map[string]string{"seal": "Seal", "unseal": "Unseal"}[args[0]]
	if method == "" {
		return fmt.Errorf("no such method: %s", args[0])
	}
	pem, err := os.ReadFile(args[2])
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return errors.New("no certificate in " + args[2])
	}
	data, err := hex.DecodeString(args[4])
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient(args[1],
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots})),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(codec{})))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // the process ends
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var answer response
	err = conn.Invoke(ctx, "/sidero.kms.KMSService/"+method, &request{nodeUUID: args[3], data: data}, &answer)
	if err != nil {
		told, ok := status.FromError(err)
		if !ok {
			return err
		}
		fmt.Printf("refused %s %s\n", told.Code(), told.Message())
		return nil
	}
	fmt.Printf("ok %x\n", answer.data)
	return nil
}
