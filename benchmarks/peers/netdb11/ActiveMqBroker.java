import java.nio.file.Path;
import org.apache.activemq.broker.BrokerService;
import org.apache.activemq.store.kahadb.KahaDBPersistenceAdapter;

/** An embedded ActiveMQ with KahaDB on its defaults: PORT FOLDER; ends when its input does. */
public final class ActiveMqBroker {
    public static void main(String[] args) throws Exception {
        KahaDBPersistenceAdapter store = new KahaDBPersistenceAdapter();
        store.setDirectory(Path.of(args[1]).toFile());
        BrokerService broker = new BrokerService();
        broker.setPersistenceAdapter(store);
        broker.setUseJmx(false);
        broker.setAdvisorySupport(false);
        broker.setDataDirectory(args[1]);
        broker.addConnector("tcp://127.0.0.1:" + args[0]);
        broker.start();
        broker.waitUntilStarted();
        System.out.println("ready");
        while (System.in.read() >= 0) {
            continue;
        }
        broker.stop();
        System.exit(0);
    }
}
