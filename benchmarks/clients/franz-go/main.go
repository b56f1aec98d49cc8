// Produces with franz-go; arguments and output are those of librdkafka.py. A setting is the number
// of milliseconds of an option: linger, retry-backoff, metadata-min-age.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

func option(setting string) kgo.Opt {
	name, text, _ := strings.Cut(setting, "=")
	wait := time.Duration(must(strconv.Atoi(text))) * time.Millisecond
	switch name {
	case "linger":
		return kgo.ProducerLinger(wait)
	case "retry-backoff":
		return kgo.RetryBackoffFn(func(int) time.Duration { return wait })
	case "metadata-min-age":
		return kgo.MetadataMinAge(wait)
	}
	return must[kgo.Opt](nil, fmt.Errorf("%s: give linger, retry-backoff or metadata-min-age", name))
}

func main() {
	topic, partitions, rate := os.Args[2], must(strconv.Atoi(os.Args[3])), must(strconv.Atoi(os.Args[4]))
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(os.Args[1], ",")...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	}
	for _, setting := range os.Args[5:] {
		options = append(options, option(setting))
	}
	client := must(kgo.NewClient(options...))
	over := make(chan struct{})
	go func() {
		os.Stdin.Read(make([]byte, 1))
		close(over)
	}()
	var printing sync.Mutex
	report := func(record *kgo.Record, err error) {
		printing.Lock()
		defer printing.Unlock()
		failure := ""
		if err != nil {
			failure = " " + err.Error()
		}
		now := time.Now()
		fmt.Printf("%d %d.%09d%s\n", record.Partition, now.Unix(), now.Nanosecond(), failure)
	}
	value, began, sent := make([]byte, 100), time.Now(), 0
	for {
		select {
		case <-over:
			return
		case <-time.After(time.Millisecond):
		}
		for due := int(time.Since(began).Seconds() * float64(rate)); sent < due; sent++ {
			record := kgo.Record{Topic: topic, Partition: int32(sent % partitions), Value: value}
			client.Produce(context.Background(), &record, report)
		}
	}
}
