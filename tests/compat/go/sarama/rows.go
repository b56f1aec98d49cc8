package main

import (
	"context"
	"time"

	"github.com/IBM/sarama"
)

// encoder of bytes, where none is null.
func encoder(data []byte) sarama.Encoder {
	if data == nil {
		return nil
	}
	return sarama.ByteEncoder(data)
}

func (r row) message(topic string) *sarama.ProducerMessage {
	message := sarama.ProducerMessage{
		Topic: topic, Key: encoder(r.Key), Value: encoder(r.Value), Timestamp: time.UnixMilli(r.Ms),
	}
	for _, each := range r.Headers {
		header := sarama.RecordHeader{Key: []byte(each.name), Value: each.value}
		message.Headers = append(message.Headers, header)
	}
	return &message
}

func write(_ context.Context, servers []string, topic, name string, rows []row) {
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
	for _, each := range rows {
		messages = append(messages, each.message(topic))
	}
	must(producer.SendMessages(messages))
	must(producer.Close())
}

func read(_ context.Context, servers []string, topic string, start, count int) {
	consumer, err := sarama.NewConsumer(servers, with(settings(), sarama.CompressionZSTD))
	must(err)
	messages, err := consumer.ConsumePartition(topic, 0, int64(start))
	must(err)
	for left := count; left > 0; left-- {
		m := <-messages.Messages()
		found := row{m.Key, m.Value, []header{}, m.Timestamp.UnixMilli()}
		for _, each := range m.Headers {
			found.Headers = append(found.Headers, header{string(each.Key), each.Value})
		}
		printed(found)
	}
	must(messages.Close())
	must(consumer.Close())
}
