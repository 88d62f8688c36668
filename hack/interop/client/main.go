// Command client runs the cases of the gRPC interoperability suite that need no cloud, each in its own process.
//
// The cases come from the library of grpc-go. Its own command is not used: it links xDS, ALTS and Google's credentials, which take
// minutes to compile and are only needed for the cases that are left out here.
//
//	client cases                          the names of all cases, one per line
//	client run -address A -case NAME      runs one case; exit status 0 if it passed
//	client run ... -ca F -name HOST       the same over TLS, trusting the certificate in F
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
)

// patience is the time limit of a case. The longest case waits for two reports that come a second apart.
const patience = 40 * time.Second

// The soak cases make large calls one after another, on one connection or each on a new one.
const (
	soakIterations   = 50
	soakRequestBytes = 271_828
	soakReplyBytes   = 314_159
)

// orcaPolicy makes the client's balancer request load reports out of band. The ORCA cases read them.
const orcaPolicy = `{"loadBalancingConfig":[{"test_backend_metrics_load_balancer":{}}]}`

// channel is a client of one target, from which the cases create their stubs.
type channel struct {
	conn    *grpc.ClientConn
	service testgrpc.TestServiceClient
	address string
	options []grpc.DialOption
}

// A case that fails ends the process with a message.
var cases = []struct {
	name string
	run  func(context.Context, *channel)
}{
	{"empty_unary", func(ctx context.Context, c *channel) { interop.DoEmptyUnaryCall(ctx, c.service) }},
	{"large_unary", func(ctx context.Context, c *channel) { interop.DoLargeUnaryCall(ctx, c.service) }},
	{"client_streaming", func(ctx context.Context, c *channel) { interop.DoClientStreaming(ctx, c.service) }},
	{"server_streaming", func(ctx context.Context, c *channel) { interop.DoServerStreaming(ctx, c.service) }},
	{"ping_pong", func(ctx context.Context, c *channel) { interop.DoPingPong(ctx, c.service) }},
	{"empty_stream", func(ctx context.Context, c *channel) { interop.DoEmptyStream(ctx, c.service) }},
	{"timeout_on_sleeping_server", func(ctx context.Context, c *channel) { interop.DoTimeoutOnSleepingServer(ctx, c.service) }},
	{"cancel_after_begin", func(ctx context.Context, c *channel) { interop.DoCancelAfterBegin(ctx, c.service) }},
	{"cancel_after_first_response", func(ctx context.Context, c *channel) { interop.DoCancelAfterFirstResponse(ctx, c.service) }},
	{"status_code_and_message", func(ctx context.Context, c *channel) { interop.DoStatusCodeAndMessage(ctx, c.service) }},
	{"special_status_message", func(ctx context.Context, c *channel) { interop.DoSpecialStatusMessage(ctx, c.service) }},
	{"custom_metadata", func(ctx context.Context, c *channel) { interop.DoCustomMetadata(ctx, c.service) }},
	{"unimplemented_method", func(ctx context.Context, c *channel) { interop.DoUnimplementedMethod(ctx, c.conn) }},
	{"unimplemented_service", func(ctx context.Context, c *channel) {
		interop.DoUnimplementedService(ctx, testgrpc.NewUnimplementedServiceClient(c.conn))
	}},
	{"orca_per_rpc", func(ctx context.Context, c *channel) { interop.DoORCAPerRPCTest(ctx, c.service) }},
	{"orca_oob", func(ctx context.Context, c *channel) { interop.DoORCAOOBTest(ctx, c.service) }},
	{"rpc_soak", func(ctx context.Context, c *channel) {
		soak(ctx, c, func() (*grpc.ClientConn, func()) { return c.conn, func() {} })
	}},
	{"channel_soak", func(ctx context.Context, c *channel) {
		soak(ctx, c, func() (*grpc.ClientConn, func()) {
			conn, err := grpc.NewClient(c.address, c.options...)
			if err != nil {
				log.Fatal(err)
			}
			return conn, func() { conn.Close() }
		})
	}},
}

func main() {
	log.SetFlags(0)
	switch {
	case len(os.Args) == 2 && os.Args[1] == "cases":
		for _, c := range cases {
			fmt.Println(c.name)
		}
	case len(os.Args) > 2 && os.Args[1] == "run":
		flags := flag.NewFlagSet("run", flag.ExitOnError)
		address := flags.String("address", "", "the address of the server")
		name := flags.String("case", "", "the name of the case")
		ca := flags.String("ca", "", "the certificate to trust, for TLS")
		host := flags.String("name", "", "the name that the certificate must be for")
		flags.Parse(os.Args[2:])
		if err := run(*address, *name, *ca, *host); err != nil {
			log.Fatal(err)
		}
	default:
		log.Fatal("usage: client cases | client run -address A -case NAME [-ca F -name HOST]")
	}
}

func run(address, name, ca, host string) error {
	transport := insecure.NewCredentials()
	if ca != "" {
		var err error
		if transport, err = credentials.NewClientTLSFromFile(ca, host); err != nil {
			return err
		}
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(transport)}
	if name == "orca_per_rpc" || name == "orca_oob" {
		options = append(options, grpc.WithDisableServiceConfig(), grpc.WithDefaultServiceConfig(orcaPolicy))
	}
	conn, err := grpc.NewClient(address, options...)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	time.AfterFunc(patience, func() { log.Fatalf("%s: still running after %v", name, patience) })
	for _, c := range cases {
		if c.name == name {
			c.run(ctx, &channel{conn, testgrpc.NewTestServiceClient(conn), address, options})
			return nil
		}
	}
	return fmt.Errorf("no case %q", name)
}

// soak sets no latency requirement, because it does not test how fast the host is.
func soak(ctx context.Context, c *channel, channelForTest func() (*grpc.ClientConn, func())) {
	interop.DoSoakTest(ctx, interop.SoakTestConfig{
		RequestSize:                      soakRequestBytes,
		ResponseSize:                     soakReplyBytes,
		PerIterationMaxAcceptableLatency: patience,
		OverallTimeout:                   patience,
		ServerAddr:                       c.address,
		NumWorkers:                       1,
		Iterations:                       soakIterations,
		ChannelForTest:                   channelForTest,
	})
}
