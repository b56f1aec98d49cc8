// A Go program around a client of other people's: its commands, and how it says what it was answered.
// Beside this file stands the code of one client, in a folder of its own:
//
//	client steps HOST:PORT,… TOPIC GROUP [VERSION]      what it asks of a cluster, a JSON line for each answer
//	client write HOST:PORT,… TOPIC CODEC                rows from stdin into partition 0
//	client read HOST:PORT,… TOPIC START COUNT           rows of partition 0
//	client transactions HOST:PORT,… TOPIC [reconnect]   three that commit and two that abort, in turns
//	client login HOST:PORT,… TOPIC CA USER PASSWORD MECHANISM   rows over SASL_SSL, read in the group TOPIC
//	client member HOST:PORT,… TOPIC GROUP SESSION_MS    until a signal; "partition offset" for each record
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const patience = 30 * time.Second

func main() {
	servers, topic, given := strings.Split(os.Args[2], ","), os.Args[3], os.Args[4:]
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	switch os.Args[1] {
	case "steps":
		steps(ctx, servers, topic, given)
	case "write":
		write(ctx, servers, topic, given[0], stdin())
	case "read":
		read(ctx, servers, topic, number(given[0]), number(given[1]))
	case "login":
		trusted := x509.NewCertPool()
		pem, err := os.ReadFile(given[0])
		must(err)
		trusted.AppendCertsFromPEM(pem)
		rows, err := login(ctx, servers, topic, &tls.Config{RootCAs: trusted}, given[1:])
		step("login", rows, err)
	case "transactions":
		transactions(servers, topic, given)
	case "member":
		signalled, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		member(signalled, servers, topic, given[0], time.Duration(number(given[1]))*time.Millisecond)
	}
}

// loginRows are what "client login" writes, one after another.
func loginRows() []string {
	rows := make([]string, 50)
	for i := range rows {
		rows[i] = fmt.Sprintf("row %d", i)
	}
	return rows
}

func number(text string) int {
	found, err := strconv.Atoi(text)
	must(err)
	return found
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func printed(value any) {
	line, err := json.Marshal(value)
	must(err)
	fmt.Println(string(line))
}

func step(name string, answer any, err error) {
	row := map[string]any{"step": name, "answer": answer}
	if err != nil {
		row["error"] = err.Error()
	}
	printed(row)
}

func text(data []byte) any {
	if data == nil {
		return nil
	}
	return string(data)
}

// header is a pair in JSON.
type header struct {
	name  string
	value []byte
}

func (h header) MarshalJSON() ([]byte, error) { return json.Marshal([]any{h.name, h.value}) }

func (h *header) UnmarshalJSON(line []byte) error {
	return json.Unmarshal(line, &[]any{&h.name, &h.value})
}

// row is a record as a line of JSON; encoding/json writes bytes in base64, and nil as null.
type row struct {
	Key     []byte   `json:"key"`
	Value   []byte   `json:"value"`
	Headers []header `json:"headers"`
	Ms      int64    `json:"ms"`
}

func stdin() []row {
	rows, lines := []row{}, bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var one row
		must(json.Unmarshal(lines.Bytes(), &one))
		rows = append(rows, one)
	}
	must(lines.Err())
	return rows
}
