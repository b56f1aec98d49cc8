// What a program asks of a cluster by franz-go.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func open(servers []string, options ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(append(options, kgo.SeedBrokers(servers...))...)
	must(err)
	return client
}

// again asks until the cluster's other brokers have heard of a change.
func again[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	for {
		answer, err := ask()
		if err == nil || ctx.Err() != nil || !kerr.IsRetriable(err) {
			return answer, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

type codec struct {
	name string
	of   kgo.CompressionCodec
}

var codecs = []codec{
	{"none", kgo.NoCompression()}, {"gzip", kgo.GzipCompression()},
	{"snappy", kgo.SnappyCompression()}, {"lz4", kgo.Lz4Compression()},
	{"zstd", kgo.ZstdCompression()},
}

// produce writes two records with each codec into partition 0.
func produce(ctx context.Context, servers []string, topic string) {
	for _, codec := range codecs {
		client := open(servers,
			kgo.ProducerBatchCompression(codec.of), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		headers := []kgo.RecordHeader{{Key: "h", Value: []byte("1")}, {Key: "h", Value: []byte("2")}}
		at := time.UnixMilli(1_700_000_000_000)
		row := kgo.Record{
			Topic: topic, Key: []byte("k"), Value: []byte(codec.name), Headers: headers, Timestamp: at,
		}
		gone := kgo.Record{Topic: topic, Key: []byte("gone"), Timestamp: at}
		results := client.ProduceSync(ctx, &row, &gone)
		step("produce "+codec.name, []int64{row.Offset, gone.Offset}, results.FirstErr())
		client.Close()
	}
}

// consume reads partition 0 from an offset up to the end.
func consume(ctx context.Context, servers []string, topic string, from, count int) ([]any, error) {
	start := map[int32]kgo.Offset{0: kgo.NewOffset().At(int64(from))}
	client := open(servers, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: start}))
	defer client.Close()
	rows := []any{}
	for len(rows) < count {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return rows, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			headers := [][2]string{}
			for _, each := range r.Headers {
				headers = append(headers, [2]string{each.Key, string(each.Value)})
			}
			row := []any{r.Offset, text(r.Key), text(r.Value), headers, r.Timestamp.UnixMilli()}
			rows = append(rows, row)
		})
	}
	return rows, nil
}

func steps(ctx context.Context, servers []string, topic string, given []string) {
	client := open(servers)
	defer client.Close()
	admin := kadm.NewClient(client)
	retention, segment := "600000", "20000000"
	settings := map[string]*string{"retention.ms": &retention}

	created, err := admin.CreateTopic(ctx, 2, 1, settings, topic)
	step("CreateTopic", created.NumPartitions, err)
	_, err = admin.CreateTopic(ctx, 2, 1, settings, topic)
	step("CreateTopic again", nil, err)
	details, err := again(ctx, func() (kadm.TopicDetails, error) {
		found, err := admin.ListTopics(ctx, topic)
		return found, errors.Join(err, found.Error())
	})
	step("ListTopics", len(details[topic].Partitions), err)
	brokers, err := admin.ListBrokers(ctx)
	step("ListBrokers", brokers.NodeIDs(), err)

	produce(ctx, servers, topic)
	rows, err := consume(ctx, servers, topic, 0, 2*len(codecs))
	step("consume", rows, err)
	rows, err = consume(ctx, servers, topic, 2*len(codecs)-1, 1)
	step("seek", rows, err)

	ends, err := admin.ListEndOffsets(ctx, topic)
	step("ListEndOffsets", ends.KOffsets()[topic][0].EpochOffset().Offset, err)
	found, err := admin.ListOffsetsAfterMilli(ctx, 1, topic)
	step("ListOffsetsAfterMilli", found.KOffsets()[topic][0].EpochOffset().Offset, err)
	grown, err := admin.CreatePartitions(ctx, 1, topic)
	step("CreatePartitions", nil, errors.Join(err, grown.Error()))
	set := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "segment.bytes", Value: &segment}}
	altered, err := admin.AlterTopicConfigs(ctx, set, topic)
	if err == nil {
		err = altered[0].Err
	}
	step("AlterTopicConfigs", nil, err)
	values, err := described(ctx, admin, topic, segment)
	step("DescribeTopicConfigs", values, err)
	dirs, err := admin.DescribeAllLogDirs(ctx, nil)
	step("DescribeAllLogDirs", len(dirs), err)
	before := kadm.Offsets{}
	before.Add(kadm.Offset{Topic: topic, Partition: 0, At: 3})
	deleted, err := admin.DeleteRecords(ctx, before)
	step("DeleteRecords", deleted[topic][0].LowWatermark, errors.Join(err, deleted.Error()))

	groups(ctx, admin, topic, given[0])
	refused(ctx, admin)
	gone, err := admin.DeleteTopics(ctx, topic)
	step("DeleteTopics", nil, errors.Join(err, gone.Error()))
}

// described is a topic's settings once the broker that answers has heard of the change.
func described(ctx context.Context, admin *kadm.Client, topic, segment string) (any, error) {
	for {
		configs, err := admin.DescribeTopicConfigs(ctx, topic)
		if err != nil {
			return nil, err
		}
		values := map[string]string{}
		for _, each := range configs[0].Configs {
			if each.Key == "segment.bytes" || each.Key == "retention.ms" {
				values[each.Key] = each.MaybeValue()
			}
		}
		if values["segment.bytes"] == segment {
			return values, nil
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func groups(ctx context.Context, admin *kadm.Client, topic, group string) {
	at := kadm.Offsets{}
	at.Add(kadm.Offset{Topic: topic, Partition: 0, At: 7, Metadata: "seven"})
	step("CommitOffsets", nil, admin.CommitAllOffsets(ctx, group, at))
	kept, err := admin.FetchOffsets(ctx, group)
	one, _ := kept.Lookup(topic, 0)
	step("FetchOffsets", []any{one.At, one.Metadata}, err)
	lags, err := admin.Lag(ctx, group)
	step("Lag", lags[group].Lag.Total(), errors.Join(err, lags.Error()))
	listed, err := admin.ListGroups(ctx)
	_, isListed := listed[group]
	step("ListGroups", isListed, err)
	described, err := admin.DescribeGroups(ctx, group)
	step("DescribeGroups", described[group].State, errors.Join(err, described.Error()))
	forgotten := kadm.TopicsSet{}
	forgotten.Add(topic, 0)
	left, err := admin.DeleteOffsets(ctx, group, forgotten)
	step("DeleteOffsets", nil, errors.Join(err, left.Error()))
	deleted, err := admin.DeleteGroups(ctx, group)
	step("DeleteGroups", nil, errors.Join(err, deleted.Error()))
	_, err = admin.DescribeGroups(ctx, group)
	step("DescribeGroups of none", nil, err)
}

// refused asks for what is not served.
func refused(ctx context.Context, admin *kadm.Client) {
	acls, err := admin.DescribeACLs(ctx, kadm.NewACLs().AnyResource().Allow().AllowHosts().
		Operations().ResourcePatternType(kadm.ACLPatternAny))
	for _, row := range acls {
		err = errors.Join(err, row.Err)
	}
	step("DescribeACLs", nil, err)
	_, err = admin.DescribeUserSCRAMs(ctx)
	step("DescribeUserSCRAMs", nil, err)
	_, err = admin.ListTransactions(ctx, nil, nil)
	step("ListTransactions", nil, err)
}

func member(
	ctx context.Context, servers []string, topic, group string, session time.Duration,
) {
	client := open(servers, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(session), kgo.HeartbeatInterval(session/10),
		kgo.AutoCommitInterval(200*time.Millisecond))
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		fetches.EachRecord(func(r *kgo.Record) { fmt.Println(r.Partition, r.Offset) })
	}
	// Who reads until a signal has read all: what was polled is committed before it leaves.
	last, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	must(client.CommitUncommittedOffsets(last))
	client.Close()
}
