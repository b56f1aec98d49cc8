// What a program asks of a cluster by sarama.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/IBM/sarama"
)

// retention lets sarama before 1.41 commit in a version that brokers of Kafka 4 know, too.
const retention = 24 * time.Hour

// settings are sarama's own, but for what a test has to decide.
func settings() *sarama.Config {
	config := sarama.NewConfig()
	config.Producer.Return.Successes = true
	config.Consumer.Return.Errors = true
	// A leader hears of a new topic a moment after it was made, on a busy machine later than that.
	config.Producer.Retry.Max = 100
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	return config
}

var codecs = []struct {
	name string
	of   sarama.CompressionCodec
}{
	{"none", sarama.CompressionNone}, {"gzip", sarama.CompressionGZIP},
	{"snappy", sarama.CompressionSnappy}, {"lz4", sarama.CompressionLZ4},
	{"zstd", sarama.CompressionZSTD},
}

// with is a copy of the settings for a codec; zstd is for brokers since 2.1.
func with(config *sarama.Config, codec sarama.CompressionCodec) *sarama.Config {
	own := *config
	own.Producer.Compression = codec
	if codec == sarama.CompressionZSTD && !own.Version.IsAtLeast(sarama.V2_1_0_0) {
		own.Version = sarama.V2_1_0_0
	}
	return &own
}

// idempotent producers are for brokers since 0.11, with one request under way.
func idempotent(config *sarama.Config) *sarama.Config {
	own := *config
	own.Producer.Idempotent = true
	own.Producer.RequiredAcks = sarama.WaitForAll
	own.Net.MaxOpenRequests = 1
	return &own
}

func produce(servers []string, topic string, config *sarama.Config) {
	for _, codec := range codecs {
		producer, err := sarama.NewSyncProducer(servers, with(idempotent(config), codec.of))
		must(err)
		at := time.UnixMilli(1_700_000_000_000)
		headers := []sarama.RecordHeader{
			{Key: []byte("h"), Value: []byte("1")}, {Key: []byte("h"), Value: []byte("2")},
		}
		row := &sarama.ProducerMessage{
			Topic: topic, Key: sarama.StringEncoder("k"), Value: sarama.StringEncoder(codec.name),
			Headers: headers, Timestamp: at,
		}
		gone := &sarama.ProducerMessage{
			Topic: topic, Key: sarama.StringEncoder("gone"), Timestamp: at,
		}
		err = errors.Join(producer.SendMessages([]*sarama.ProducerMessage{row}),
			producer.SendMessages([]*sarama.ProducerMessage{gone}))
		var refused sarama.ProducerErrors
		if errors.As(err, &refused) {
			err = refused[0].Err
		}
		step("produce "+codec.name, []int64{row.Offset, gone.Offset}, err)
		must(producer.Close())
	}
}

// consume reads partition 0 from an offset on.
func consume(servers []string, topic string, config *sarama.Config, from, count int) ([]any, error) {
	consumer, err := sarama.NewConsumer(servers, config)
	must(err)
	defer consumer.Close()
	messages, err := consumer.ConsumePartition(topic, 0, int64(from))
	if err != nil {
		return nil, err
	}
	defer messages.Close()
	rows := []any{}
	for len(rows) < count {
		var m *sarama.ConsumerMessage
		select {
		case m = <-messages.Messages():
		case refused := <-messages.Errors():
			return rows, refused
		case <-time.After(patience):
			return rows, fmt.Errorf("%d records of %d within %s", len(rows), count, patience)
		}
		headers := [][2]string{}
		for _, each := range m.Headers {
			headers = append(headers, [2]string{string(each.Key), string(each.Value)})
		}
		row := []any{m.Offset, text(m.Key), text(m.Value), headers, m.Timestamp.UnixMilli()}
		rows = append(rows, row)
	}
	return rows, nil
}

// steps takes the brokers for sarama's default version of them, or for the newest that it knows.
func steps(_ context.Context, servers []string, topic string, given []string) {
	group, config := given[0], settings()
	if given[1] == "newest" {
		config.Version = sarama.MaxVersion
	}
	admin, err := sarama.NewClusterAdmin(servers, config)
	must(err)
	defer admin.Close()
	age, segment := "600000", "20000000"
	made := &sarama.TopicDetail{NumPartitions: 2, ReplicationFactor: 1,
		ConfigEntries: map[string]*string{"retention.ms": &age}}
	step("CreateTopic", nil, admin.CreateTopic(topic, made, false))
	err = admin.CreateTopic(topic, made, false)
	step("CreateTopic again", errors.Is(err, sarama.ErrTopicAlreadyExists), err)
	brokers, controller, err := admin.DescribeCluster()
	step("DescribeCluster", []any{len(brokers), controller >= 0}, err)

	client, err := sarama.NewClient(servers, config)
	must(err)
	defer client.Close()
	must(leads(client, topic))
	produce(servers, topic, config)
	newer := with(config, sarama.CompressionZSTD)
	rows, err := consume(servers, topic, newer, 0, 2*len(codecs))
	step("consume", rows, err)
	rows, err = consume(servers, topic, newer, 2*len(codecs)-1, 1)
	step("seek", rows, err)

	end, err := client.GetOffset(topic, 0, sarama.OffsetNewest)
	step("GetOffset newest", end, err)
	found, err := client.GetOffset(topic, 0, 1)
	step("GetOffset of a time", found, err)
	step("CreatePartitions", nil, admin.CreatePartitions(topic, 3, nil, false))
	step("AlterConfig", nil, admin.AlterConfig(sarama.TopicResource, topic,
		map[string]*string{"segment.bytes": &segment}, false))
	wanted := sarama.ConfigResource{
		Type: sarama.TopicResource, Name: topic, ConfigNames: []string{"segment.bytes"},
	}
	value, err := described(admin, wanted, segment)
	step("DescribeConfig", value, err)
	step("DeleteRecords", nil, admin.DeleteRecords(topic, map[int32]int64{0: 3}))
	first, err := client.GetOffset(topic, 0, sarama.OffsetOldest)
	step("GetOffset oldest", first, err)
	groups(admin, client, topic, group)
	_, err = admin.ListAcls(sarama.AclFilter{ResourceType: sarama.AclResourceAny,
		Operation: sarama.AclOperationAny, PermissionType: sarama.AclPermissionAny})
	step("ListAcls", nil, err)
	step("DeleteTopic", nil, admin.DeleteTopic(topic))
}

// leads returns once partition 0's leader has heard that it is one. Kafka's brokers, too, hear of a new topic after
// it was made; an idempotent producer of sarama 1.38 asks again as often as it may without a pause in between, and
// gives a record up within a second.
func leads(client sarama.Client, topic string) error {
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		_, err := client.GetOffset(topic, 0, sarama.OffsetNewest)
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// described is a setting once the broker that answers has heard of the change.
func described(admin sarama.ClusterAdmin, wanted sarama.ConfigResource, value string) (any, error) {
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		entries, err := admin.DescribeConfig(wanted)
		if err != nil || entries[0].Value == value || time.Now().After(end) {
			return len(entries), err
		}
	}
}

// commit is by hand, as programs do that are no members of their group.
func commit(client sarama.Client, topic, group string) error {
	offsets, err := sarama.NewOffsetManagerFromClient(group, client)
	must(err)
	of, err := offsets.ManagePartition(topic, 0)
	must(err)
	of.MarkOffset(7, "seven")
	offsets.Commit()
	of.AsyncClose()
	err = offsets.Close()
	for refused := range of.Errors() {
		err = refused.Err
	}
	return err
}

func groups(admin sarama.ClusterAdmin, client sarama.Client, topic, group string) {
	step("commit", nil, commit(client, topic, group))
	client.Config().Consumer.Offsets.Retention = retention
	step("commit with a retention time", nil, commit(client, topic, group))
	kept, err := admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {0}})
	if err == nil {
		block := kept.GetBlock(topic, 0)
		step("ListConsumerGroupOffsets", []any{block.Offset, block.Metadata}, nil)
	} else {
		step("ListConsumerGroupOffsets", nil, err)
	}
	listed, err := admin.ListConsumerGroups()
	_, isListed := listed[group]
	step("ListConsumerGroups", isListed, err)
	descriptions, err := admin.DescribeConsumerGroups([]string{group})
	if err == nil {
		step("DescribeConsumerGroups", descriptions[0].State, nil)
	} else {
		step("DescribeConsumerGroups", nil, err)
	}
	step("DeleteConsumerGroup", nil, admin.DeleteConsumerGroup(group))
}

// reader prints what its member of a group reads.
type reader struct{}

func (reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (reader) ConsumeClaim(s sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case m, isOpen := <-claim.Messages():
			if !isOpen {
				return nil
			}
			fmt.Println(m.Partition, m.Offset)
			s.MarkMessage(m, "")
		case <-s.Context().Done():
			return nil
		}
	}
}

func member(
	ctx context.Context, servers []string, topic, group string, session time.Duration,
) {
	config := settings()
	config.Consumer.Group.Session.Timeout = session
	config.Consumer.Group.Heartbeat.Interval = session / 10
	config.Consumer.Offsets.AutoCommit.Interval = 200 * time.Millisecond
	config.Consumer.Offsets.Retention = retention
	consumer, err := sarama.NewConsumerGroup(servers, group, config)
	must(err)
	go func() {
		for refused := range consumer.Errors() {
			fmt.Fprintln(os.Stderr, refused)
		}
	}()
	for ctx.Err() == nil {
		must(consumer.Consume(ctx, []string{topic}, reader{}))
	}
	must(consumer.Close())
}
