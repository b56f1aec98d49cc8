import java.io.IOException;
import java.time.Instant;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Produces with Apache Kafka's own client; arguments and output are those of librdkafka.py. */
public final class Produce {
    public static void main(String[] given) throws Exception {
        String topic = given[1];
        int partitions = Integer.parseInt(given[2]);
        long rate = Long.parseLong(given[3]);
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", given[0]));
        for (int at = 4; at < given.length; at++) {
            String[] pair = given[at].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        var bytes = new ByteArraySerializer();
        var producer = new KafkaProducer<byte[], byte[]>(settings, bytes, bytes);
        byte[] value = new byte[100];
        long began = System.nanoTime();
        new Thread(Produce::endWithStdin).start();
        for (long sent = 0; ; Thread.sleep(1)) {
            long due = (System.nanoTime() - began) * rate / 1_000_000_000;
            for (; sent < due; sent++) {
                int partition = (int) (sent % partitions);
                var row = new ProducerRecord<byte[], byte[]>(topic, partition, null, value);
                producer.send(row, (where, error) -> report(partition, error));
            }
        }
    }

    private static void endWithStdin() {
        try {
            System.in.read();
        } catch (IOException error) {
            System.err.println(error);
        }
        Runtime.getRuntime().halt(0);
    }

    private static synchronized void report(int partition, Exception error) {
        Instant now = Instant.now();
        String failure = error == null ? "" : " " + error;
        System.out.printf("%d %d.%09d%s%n", partition, now.getEpochSecond(), now.getNano(), failure);
    }
}
