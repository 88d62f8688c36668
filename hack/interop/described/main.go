// Command described serves the test service of gRPC's interoperability suite, and describes it by server reflection: in both versions of the
// protocol, or with -v1alpha in the old one alone.
package main

import (
	"flag"
	"fmt"
	"log"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/reflection"
)

func main() {
	port := flag.Int("port", 0, "the port")
	old := flag.Bool("v1alpha", false, "offer grpc.reflection.v1alpha alone")
	flag.Parse()
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	testgrpc.RegisterTestServiceServer(server, interop.NewTestServer())
	if *old {
		reflection.Register(onlyOld{server})
	} else {
		reflection.Register(server)
	}
	log.Fatal(server.Serve(listener))
}

// onlyOld leaves out the service of the new version.
type onlyOld struct{ *grpc.Server }

func (server onlyOld) RegisterService(description *grpc.ServiceDesc, service any) {
	if description.ServiceName != "grpc.reflection.v1.ServerReflection" {
		server.Server.RegisterService(description, service)
	}
}
