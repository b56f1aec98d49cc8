import java.time.Duration;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Kafka's own client, for Kafka and for whatever speaks its protocol. */
final class KafkaPaper {
    /** Of a record of 200 bytes in a batch, and of the batch. */
    static final int RECORD_BYTES = 208;
    static final int BATCH_BYTES = 80;

    static Paper.Sender sender(String address, String topic, int batch) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        settings.put("acks", "all");
        settings.put("batch.size", batch == 1 ? 0 : batch * RECORD_BYTES + BATCH_BYTES);
        settings.put("linger.ms", batch == 1 ? 0 : 5);
        settings.put("buffer.memory", Paper.WINDOW_BYTES);
        KafkaProducer<byte[], byte[]> producer =
            new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        Exception[] failed = {null};
        AtomicLong acknowledged = new AtomicLong();
        return new Paper.Sender() {
            @Override
            public void send(byte[] message) throws Exception {
                producer.send(new ProducerRecord<>(topic, 0, null, message), (done, error) -> {
                    if (error != null) {
                        failed[0] = error;
                    } else {
                        acknowledged.incrementAndGet();
                    }
                });
                if (failed[0] != null) {
                    throw failed[0];
                }
            }

            @Override
            public long acknowledged() {
                return acknowledged.get();
            }

            @Override
            public void close() throws Exception {
                producer.close();
                if (failed[0] != null) {
                    throw failed[0];
                }
            }
        };
    }

    static Paper.Receiver receiver(String address, String topic) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        settings.put("max.poll.records", 1000);
        settings.put("max.partition.fetch.bytes", 200_000);
        settings.put("enable.auto.commit", false);
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
            settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        List<TopicPartition> partition = List.of(new TopicPartition(topic, 0));
        consumer.assign(partition);
        consumer.seekToBeginning(partition);
        return new Paper.Receiver() {
            private Iterator<ConsumerRecord<byte[], byte[]>> waiting =
                Collections.emptyIterator();

            @Override
            public byte[] receive() {
                if (!waiting.hasNext()) {
                    waiting = consumer.poll(Duration.ofSeconds(60)).iterator();
                }
                return waiting.next().value();
            }

            @Override
            public void close() {
                consumer.close(Duration.ofSeconds(5));
            }
        };
    }
}
