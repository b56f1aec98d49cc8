import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DeliverCallback;
import com.rabbitmq.client.MessageProperties;
import java.util.Map;
import java.util.NavigableSet;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;

/** RabbitMQ by its own client: persistent messages to a durable queue, each confirmed. */
final class RabbitMqPaper {
    /** Messages under way without a confirmation. */
    static final int WINDOW = Paper.WINDOW_BYTES / Paper.MESSAGE_BYTES;

    private static Connection connect(String address) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri("amqp://guest:guest@" + address);
        return factory.newConnection();
    }

    static Paper.Sender sender(String address, String queue) throws Exception {
        Connection connection = connect(address);
        Channel channel = connection.createChannel();
        channel.queueDeclare(queue, true, false, false, Map.of());
        channel.confirmSelect();
        Semaphore room = new Semaphore(WINDOW);
        ConcurrentSkipListSet<Long> under = new ConcurrentSkipListSet<>();
        AtomicBoolean refused = new AtomicBoolean();
        AtomicLong acknowledged = new AtomicLong();
        channel.addConfirmListener((tag, multiple) -> {
            int confirmed = 1;
            if (multiple) {
                NavigableSet<Long> all = under.headSet(tag, true);
                confirmed = all.size();
                all.clear();
            } else {
                under.remove(tag);
            }
            acknowledged.addAndGet(confirmed);
            room.release(confirmed);
        }, (tag, multiple) -> refused.set(true));
        return new Paper.Sender() {
            @Override
            public void send(byte[] message) throws Exception {
                take(1);
                under.add(channel.getNextPublishSeqNo());
                channel.basicPublish("", queue, MessageProperties.PERSISTENT_BASIC, message);
            }

            private void take(int messages) throws Exception {
                if (!room.tryAcquire(messages, 60, TimeUnit.SECONDS) || refused.get()) {
                    throw new IllegalStateException("not confirmed");
                }
            }

            @Override
            public long acknowledged() {
                return acknowledged.get();
            }

            @Override
            public void close() throws Exception {
                take(WINDOW);
                connection.close();
            }
        };
    }

    static Paper.Receiver receiver(String address, String queue) throws Exception {
        Connection connection = connect(address);
        Channel channel = connection.createChannel();
        BlockingQueue<byte[]> waiting = new ArrayBlockingQueue<>(1000);
        DeliverCallback each = (tag, delivery) -> {
            try {
                waiting.put(delivery.getBody());
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        };
        channel.basicQos(1000);
        channel.basicConsume(queue, true, each, tag -> { });
        return new Paper.Receiver() {
            @Override
            public byte[] receive() throws Exception {
                return waiting.poll(60, TimeUnit.SECONDS);
            }

            @Override
            public void close() throws Exception {
                connection.close();
            }
        };
    }
}
