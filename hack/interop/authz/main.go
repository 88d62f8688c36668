// An authorization service, written against Envoy's own messages and gRPC's own server. `x-mode` of the request says what it answers.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"strings"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	auth "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	types "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	failure "google.golang.org/grpc/status"
)

type server struct {
	auth.UnimplementedAuthorizationServer
}

func header(key, value string) *core.HeaderValueOption {
	return &core.HeaderValueOption{Header: &core.HeaderValue{Key: key, Value: value}}
}

func denied(code codes.Code, http types.StatusCode, body string, headers ...*core.HeaderValueOption) *auth.CheckResponse {
	return &auth.CheckResponse{
		Status: &status.Status{Code: int32(code)},
		HttpResponse: &auth.CheckResponse_DeniedResponse{DeniedResponse: &auth.DeniedHttpResponse{
			Status: &types.HttpStatus{Code: http}, Headers: headers, Body: body,
		}},
	}
}

func (server) Check(ctx context.Context, in *auth.CheckRequest) (*auth.CheckResponse, error) {
	attributes := in.GetAttributes()
	http := attributes.GetRequest().GetHttp()
	switch http.GetHeaders()["x-mode"] {
	case "deny":
		return denied(codes.PermissionDenied, types.StatusCode_Found, "log in", header("location", "/login"),
			header("set-cookie", "a=b"), header("x-internal", "1")), nil
	case "401":
		return denied(codes.Unauthenticated, types.StatusCode_Unauthorized, "", header("www-authenticate", "Bearer")), nil
	case "bare":
		return &auth.CheckResponse{Status: &status.Status{Code: int32(codes.PermissionDenied)}}, nil
	case "empty":
		return &auth.CheckResponse{}, nil
	case "fail":
		return nil, failure.Error(codes.Unavailable, "busy")
	case "long":
		return denied(codes.PermissionDenied, types.StatusCode_Forbidden, strings.Repeat("a", 1000000)), nil
	case "hang":
		select {
		case <-ctx.Done():
		case <-time.After(time.Minute):
		}
		return nil, ctx.Err()
	}
	seen := fmt.Sprintf("%s %s %s %s %s %d %s tier=%s peer=%t", http.GetMethod(), http.GetPath(), http.GetHost(), http.GetScheme(),
		http.GetProtocol(), http.GetSize(), http.GetBody(), attributes.GetContextExtensions()["tier"],
		attributes.GetSource().GetAddress().GetSocketAddress().GetPortValue() > 0)
	return &auth.CheckResponse{
		Status: &status.Status{Code: int32(codes.OK)},
		HttpResponse: &auth.CheckResponse_OkResponse{OkResponse: &auth.OkHttpResponse{
			Headers:         []*core.HeaderValueOption{header("x-user", "joe"), header("x-admin", "yes"), header("x-seen", seen)},
			HeadersToRemove: []string{"x-secret"},
		}},
	}, nil
}

func main() {
	port := flag.Int("port", 0, "the port")
	flag.Parse()
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	if err != nil {
		log.Fatal(err)
	}
	grpcServer := grpc.NewServer()
	auth.RegisterAuthorizationServer(grpcServer, server{})
	log.Fatal(grpcServer.Serve(listener))
}
