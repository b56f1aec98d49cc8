package main

import (
	"fmt"
	"os"
	"time"

	"github.com/IBM/sarama"
)

// transactions commits three transactions of one record and aborts two. Each has a session of its own
// with the broker's connections closed between its record and its end, if given[0] is "reconnect".
func transactions(servers []string, topic string, given []string) {
	config := settings()
	config.Version = sarama.MaxVersion
	config = idempotent(config)
	config.Producer.Transaction.ID = topic
	config.Producer.Retry.Backoff = 100 * time.Millisecond
	client, err := sarama.NewClient(servers, config)
	must(err)
	producer, err := sarama.NewSyncProducerFromClient(client)
	must(err)
	for number := range 5 {
		must(producer.BeginTxn())
		_, _, err := producer.SendMessage(&sarama.ProducerMessage{
			Topic: topic, Value: sarama.StringEncoder(fmt.Sprint(number)),
		})
		must(err)
		if given[0] == "reconnect" {
			for _, broker := range client.Brokers() {
				// A broker without a connection answers ErrNotConnected.
				if err := broker.Close(); err != nil && err != sarama.ErrNotConnected {
					fmt.Fprintln(os.Stderr, err)
				}
			}
		}
		end := producer.CommitTxn
		if number%2 == 1 {
			end = producer.AbortTxn
		}
		for err = end(); err != nil && producer.TxnStatus()&sarama.ProducerTxnFlagInError != 0; err = end() {
			fmt.Fprintln(os.Stderr, err)
			time.Sleep(100 * time.Millisecond)
		}
		must(err)
		printed(map[string]any{"step": fmt.Sprint(number), "answer": number%2 == 0})
	}
	must(producer.Close())
}
