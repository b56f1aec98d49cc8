package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// row is a record as a line of JSON; encoding/json writes bytes in base64, and nil as null.
type row struct {
	Key     []byte  `json:"key"`
	Value   []byte  `json:"value"`
	Headers [][]any `json:"headers"`
	Ms      int64   `json:"ms"`
}

// given is a row whose headers are still to be read.
type given struct {
	row
	Headers [][2]json.RawMessage `json:"headers"`
}

func (g given) record(topic string) *kgo.Record {
	record := kgo.Record{Topic: topic, Key: g.Key, Value: g.Value, Timestamp: time.UnixMilli(g.Ms)}
	for _, pair := range g.Headers {
		var header kgo.RecordHeader
		must(json.Unmarshal(pair[0], &header.Key))
		must(json.Unmarshal(pair[1], &header.Value))
		record.Headers = append(record.Headers, header)
	}
	return &record
}

func write(ctx context.Context, servers []string, topic, name string) {
	var codec kgo.CompressionCodec
	for _, each := range codecs {
		if each.name == name {
			codec = each.of
		}
	}
	client := open(servers, kgo.ProducerBatchCompression(codec), kgo.DefaultProduceTopic(topic),
		kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer client.Close()
	records := []*kgo.Record{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var one given
		must(json.Unmarshal(lines.Bytes(), &one))
		records = append(records, one.record(topic))
	}
	must(lines.Err())
	must(client.ProduceSync(ctx, records...).FirstErr())
}

func read(ctx context.Context, servers []string, topic string, start, count int) {
	at := map[int32]kgo.Offset{0: kgo.NewOffset().At(int64(start))}
	client := open(servers, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: at}))
	defer client.Close()
	for left := count; left > 0; {
		fetches := client.PollRecords(ctx, left)
		must(fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			found := row{Key: r.Key, Value: r.Value, Headers: [][]any{}, Ms: r.Timestamp.UnixMilli()}
			for _, each := range r.Headers {
				found.Headers = append(found.Headers, []any{each.Key, each.Value})
			}
			line, err := json.Marshal(found)
			must(err)
			fmt.Println(string(line))
			left--
		})
	}
}
