package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/IBM/sarama"
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

// encoder of bytes, where none is null.
func encoder(data []byte) sarama.Encoder {
	if data == nil {
		return nil
	}
	return sarama.ByteEncoder(data)
}

func (g given) message(topic string) *sarama.ProducerMessage {
	message := sarama.ProducerMessage{
		Topic: topic, Key: encoder(g.Key), Value: encoder(g.Value), Timestamp: time.UnixMilli(g.Ms),
	}
	for _, pair := range g.Headers {
		var name string
		var header sarama.RecordHeader
		must(json.Unmarshal(pair[0], &name))
		must(json.Unmarshal(pair[1], &header.Value))
		header.Key = []byte(name)
		message.Headers = append(message.Headers, header)
	}
	return &message
}

func write(servers []string, topic, name string) {
	config := settings()
	for _, each := range codecs {
		if each.name == name {
			config = with(config, each.of)
		}
	}
	// All rows are one batch.
	config.Producer.Flush.Frequency = 100 * time.Millisecond
	producer, err := sarama.NewSyncProducer(servers, config)
	must(err)
	messages := []*sarama.ProducerMessage{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var one given
		must(json.Unmarshal(lines.Bytes(), &one))
		messages = append(messages, one.message(topic))
	}
	must(lines.Err())
	must(producer.SendMessages(messages))
	must(producer.Close())
}

func read(servers []string, topic string, start, count int) {
	consumer, err := sarama.NewConsumer(servers, with(settings(), sarama.CompressionZSTD))
	must(err)
	messages, err := consumer.ConsumePartition(topic, 0, int64(start))
	must(err)
	for left := count; left > 0; left-- {
		m := <-messages.Messages()
		found := row{Key: m.Key, Value: m.Value, Headers: [][]any{}, Ms: m.Timestamp.UnixMilli()}
		for _, each := range m.Headers {
			found.Headers = append(found.Headers, []any{string(each.Key), each.Value})
		}
		line, err := json.Marshal(found)
		must(err)
		fmt.Println(string(line))
	}
	must(messages.Close())
	must(consumer.Close())
}
