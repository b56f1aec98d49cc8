package main

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func (r row) record(topic string) *kgo.Record {
	record := kgo.Record{Topic: topic, Key: r.Key, Value: r.Value, Timestamp: time.UnixMilli(r.Ms)}
	for _, each := range r.Headers {
		record.Headers = append(record.Headers, kgo.RecordHeader{Key: each.name, Value: each.value})
	}
	return &record
}

func write(ctx context.Context, servers []string, topic, name string, rows []row) {
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
	for _, each := range rows {
		records = append(records, each.record(topic))
	}
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
			found := row{r.Key, r.Value, []header{}, r.Timestamp.UnixMilli()}
			for _, each := range r.Headers {
				found.Headers = append(found.Headers, header{each.Key, each.Value})
			}
			printed(found)
			left--
		})
	}
}
