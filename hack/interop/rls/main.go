// Rate limit services that misbehave, all on one port. The `:authority` of a call says how. They are written on frames of HTTP/2, because
// gRPC's own server would not do any of this.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

func block(pairs ...string) []byte {
	var out bytes.Buffer
	encoder := hpack.NewEncoder(&out)
	for i := 0; i < len(pairs); i += 2 {
		encoder.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
	}
	return out.Bytes()
}

var ok = []string{":status", "200", "content-type", "application/grpc"}

// Sends a head in as many frames as it needs.
func head(framer *http2.Framer, stream uint32, end bool, pairs ...string) error {
	const size = 16384
	rest := block(pairs...)
	first := rest[:min(size, len(rest))]
	rest = rest[len(first):]
	err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: first, EndStream: end, EndHeaders: len(rest) == 0})
	for err == nil && len(rest) > 0 {
		piece := rest[:min(size, len(rest))]
		rest = rest[len(piece):]
		err = framer.WriteContinuation(stream, len(rest) == 0, piece)
	}
	return err
}

// Sends one message, and then the status of the call.
func answer(framer *http2.Framer, stream uint32, message []byte) error {
	if err := head(framer, stream, false, ok...); err != nil {
		return err
	}
	prefix := []byte{0, byte(len(message) >> 24), byte(len(message) >> 16), byte(len(message) >> 8), byte(len(message))}
	for whole := append(prefix, message...); len(whole) > 0; {
		piece := whole[:min(16384, len(whole))]
		whole = whole[len(piece):]
		if err := framer.WriteData(stream, false, piece); err != nil {
			return err
		}
	}
	return head(framer, stream, true, "grpc-status", "0")
}

// Answers one call. An error ends the connection.
func call(framer *http2.Framer, connection net.Conn, stream uint32, mode string) error {
	switch mode {
	case "yes":
		return answer(framer, stream, []byte{8, 1})
	case "no":
		return answer(framer, stream, []byte{8, 2})
	case "unknown":
		return answer(framer, stream, []byte{8, 0})
	case "other":
		return answer(framer, stream, []byte{8, 99})
	case "garbage":
		return answer(framer, stream, []byte("\xff\xff\xff\xffno protobuf"))
	case "failed":
		return head(framer, stream, true, append(ok, "grpc-status", "14")...)
	case "status":
		return head(framer, stream, true, ":status", "200")
	case "headers":
		pairs := ok
		for i := range 1280 {
			pairs = append(pairs, fmt.Sprintf("x-%d", i), strings.Repeat("a", 8192))
		}
		return head(framer, stream, true, pairs...)
	case "half":
		if err := head(framer, stream, false, ok...); err != nil {
			return err
		}
		framer.WriteData(stream, false, []byte{0, 0, 0, 0, 2, 8})
		return io.EOF
	case "text":
		connection.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"))
		return io.EOF
	}
	// "hang"
	return nil
}

func serve(connection net.Conn) {
	defer connection.Close()
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(connection, preface); err != nil {
		return
	}
	framer := http2.NewFramer(connection, connection)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	framer.WriteSettings()
	modes := map[uint32]string{}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !frame.IsAck() {
				framer.WritePing(true, frame.Data)
			}
		case *http2.MetaHeadersFrame:
			modes[frame.StreamID] = strings.SplitN(frame.PseudoValue("authority"), ".", 2)[0]
		case *http2.DataFrame:
			// Windows are larger than what the tests send.
			if frame.StreamEnded() {
				if err := call(framer, connection, frame.StreamID, modes[frame.StreamID]); err != nil {
					return
				}
				delete(modes, frame.StreamID)
			}
		}
	}
}

func main() {
	port := flag.Int("port", 0, "the port")
	flag.Parse()
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	if err != nil {
		log.Fatal(err)
	}
	for {
		connection, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go serve(connection)
	}
}
