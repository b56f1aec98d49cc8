import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import org.apache.activemq.ActiveMQConnectionFactory;

/** ActiveMQ by its own client: persistent messages, sent without waiting or 50 a transaction. */
final class ActiveMqPaper {
    static Paper.Sender sender(String address, String queue, int batch) throws Exception {
        ActiveMQConnectionFactory factory = new ActiveMQConnectionFactory("tcp://" + address);
        factory.setUseAsyncSend(true);
        factory.setProducerWindowSize(Paper.WINDOW_BYTES);
        factory.setWatchTopicAdvisories(false);
        Connection connection = factory.createConnection();
        connection.start();
        boolean transacted = batch > 1;
        Session session = connection.createSession(
            transacted, transacted ? Session.SESSION_TRANSACTED : Session.AUTO_ACKNOWLEDGE);
        MessageProducer producer = session.createProducer(session.createQueue(queue));
        producer.setDeliveryMode(DeliveryMode.PERSISTENT);
        return new Paper.Sender() {
            private long sent;
            /** Of single messages those that were sent: the window is all that is not known. */
            private volatile long acknowledged;

            @Override
            public void send(byte[] message) throws Exception {
                BytesMessage packed = session.createBytesMessage();
                packed.writeBytes(message);
                producer.send(packed);
                if (++sent % batch == 0) {
                    if (transacted) {
                        session.commit();
                    }
                    acknowledged = sent;
                }
            }

            @Override
            public long acknowledged() {
                return acknowledged;
            }

            @Override
            public void close() throws Exception {
                if (transacted) {
                    session.commit();
                }
                session.createTemporaryQueue(); // answered after all that was sent before
                connection.close();
            }
        };
    }

    static Paper.Receiver receiver(String address, String queue) throws Exception {
        ActiveMQConnectionFactory factory = new ActiveMQConnectionFactory("tcp://" + address);
        factory.getPrefetchPolicy().setQueuePrefetch(1000);
        factory.setWatchTopicAdvisories(false);
        Connection connection = factory.createConnection();
        connection.start();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageConsumer consumer = session.createConsumer(session.createQueue(queue));
        return new Paper.Receiver() {
            @Override
            public byte[] receive() throws Exception {
                BytesMessage found = (BytesMessage) consumer.receive(60_000);
                byte[] message = new byte[(int) found.getBodyLength()];
                found.readBytes(message);
                return message;
            }

            @Override
            public void close() throws Exception {
                connection.close();
            }
        };
    }
}
