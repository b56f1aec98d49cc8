// Rows that sarama writes and reads over SASL_SSL.
package main

import (
	"context"
	"crypto/tls"

	"github.com/IBM/sarama"
)

// loginReader takes the rows of a group's only member.
type loginReader struct {
	rows []string
	done context.CancelFunc
}

func (r *loginReader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (r *loginReader) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (r *loginReader) ConsumeClaim(
	session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim,
) error {
	for message := range claim.Messages() {
		r.rows = append(r.rows, string(message.Value))
		if len(r.rows) == len(loginRows()) {
			r.done()
			return nil
		}
	}
	return nil
}

// login takes a user, a password and PLAIN: sarama leaves SCRAM to its users.
func login(
	ctx context.Context, servers []string, topic string, tls *tls.Config, given []string,
) ([]string, error) {
	config := settings()
	config.Version = sarama.V2_1_0_0
	config.Net.TLS.Enable, config.Net.TLS.Config = true, tls
	config.Net.SASL.Enable, config.Net.SASL.Version = true, sarama.SASLHandshakeV1
	config.Net.SASL.User, config.Net.SASL.Password = given[0], given[1]
	config.Net.SASL.Mechanism = sarama.SASLMechanism(given[2])
	producer, err := sarama.NewSyncProducer(servers, config)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	for _, value := range loginRows() {
		row := &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(value)}
		if _, _, err := producer.SendMessage(row); err != nil {
			return nil, err
		}
	}
	group, err := sarama.NewConsumerGroup(servers, topic, config)
	if err != nil {
		return nil, err
	}
	defer group.Close()
	reading, done := context.WithCancel(ctx)
	defer done()
	found := &loginReader{done: done}
	for reading.Err() == nil {
		if err := group.Consume(reading, []string{topic}, found); err != nil {
			return found.rows, err
		}
	}
	return found.rows, ctx.Err()
}
