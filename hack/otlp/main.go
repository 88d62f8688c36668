// The OTLP receiver of the OpenTelemetry collector, which writes each export that it accepts as a line of JSON (OTLP/JSON) to standard output.
//
//	otlp GRPC_ADDRESS HTTP_ADDRESS
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
)

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(grpc, http string) error {
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig()
	written := confmap.NewFromStringMap(map[string]any{"protocols": map[string]any{
		"grpc": map[string]any{"endpoint": grpc},
		"http": map[string]any{"endpoint": http},
	}})
	if err := written.Unmarshal(config); err != nil {
		return err
	}
	var mutex sync.Mutex
	write := func(line []byte, err error) error {
		if err != nil {
			return err
		}
		mutex.Lock()
		defer mutex.Unlock()
		_, err = fmt.Printf("%s\n", line)
		return err
	}
	nextTraces, err := consumer.NewTraces(func(_ context.Context, traces ptrace.Traces) error {
		return write((&ptrace.JSONMarshaler{}).MarshalTraces(traces))
	})
	if err != nil {
		return err
	}
	nextLogs, err := consumer.NewLogs(func(_ context.Context, logs plog.Logs) error {
		return write((&plog.JSONMarshaler{}).MarshalLogs(logs))
	})
	if err != nil {
		return err
	}
	settings := receiver.Settings{
		ID:                component.NewID(factory.Type()),
		TelemetrySettings: componenttest.NewNopTelemetrySettings(),
		BuildInfo:         component.NewDefaultBuildInfo(),
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	// Both are one receiver, which serves both on the same ports.
	traces, err := factory.CreateTraces(ctx, settings, config, nextTraces)
	if err != nil {
		return err
	}
	logs, err := factory.CreateLogs(ctx, settings, config, nextLogs)
	if err != nil {
		return err
	}
	for _, part := range []component.Component{traces, logs} {
		if err := part.Start(ctx, componenttest.NewNopHost()); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return errors.Join(traces.Shutdown(context.Background()), logs.Shutdown(context.Background()))
}
