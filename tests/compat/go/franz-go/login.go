// Rows that franz-go writes and reads over SASL_SSL.
package main

import (
	"context"
	"crypto/tls"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// mechanism takes a user, a password and the name of a mechanism.
func mechanism(given []string) (sasl.Mechanism, error) {
	user := scram.Auth{User: given[0], Pass: given[1]}
	switch given[2] {
	case "PLAIN":
		return plain.Auth{User: given[0], Pass: given[1]}.AsMechanism(), nil
	case "SCRAM-SHA-256":
		return user.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return user.AsSha512Mechanism(), nil
	}
	return nil, fmt.Errorf("no mechanism %s", given[2])
}

func login(
	ctx context.Context, servers []string, topic string, tls *tls.Config, given []string,
) ([]string, error) {
	chosen, err := mechanism(given)
	if err != nil {
		return nil, err
	}
	client := open(servers, kgo.DialTLSConfig(tls), kgo.SASL(chosen),
		kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer client.Close()
	for _, value := range loginRows() {
		row := &kgo.Record{Topic: topic, Value: []byte(value)}
		if err := client.ProduceSync(ctx, row).FirstErr(); err != nil {
			return nil, err
		}
	}
	rows := []string{}
	for len(rows) < len(loginRows()) {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return rows, err
		}
		fetches.EachRecord(func(r *kgo.Record) { rows = append(rows, string(r.Value)) })
	}
	return rows, nil
}
