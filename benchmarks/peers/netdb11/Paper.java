import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * The experiment of the NetDB'11 paper for one system: one producer for so many seconds, or one
 * consumer of so many messages. Prints one JSON object.
 *
 * <p>SYSTEM produce ADDRESS NAME BATCH SECONDS LEAST FILE, or SYSTEM consume ADDRESS NAME COUNT.
 */
public final class Paper {
    static final int MESSAGE_BYTES = 200;
    static final int DIGITS = 10;
    static final double SAMPLE_SECONDS = 0.25;
    /** What a sender may have under way without the system's word, so that nobody's rate is that
     * of filling its own memory. */
    static final int WINDOW_BYTES = 1_000_000;

    /** Sends one message after another; close returns when the last is acknowledged. */
    interface Sender extends AutoCloseable {
        void send(byte[] message) throws Exception;

        /** How many the system has acknowledged so far; for any thread. */
        long acknowledged();
    }

    /** Receives one message after another; nobody waits longer than a minute. */
    interface Receiver extends AutoCloseable {
        byte[] receive() throws Exception;
    }

    /** Messages and seconds since the start, now and then: what the chart is drawn of. */
    static final class Samples {
        private final long began = System.nanoTime();
        private double next = SAMPLE_SECONDS;
        private final StringBuilder text = new StringBuilder();

        double seconds() {
            return (System.nanoTime() - began) / 1e9;
        }

        void add(long messages, double now) {
            if (now >= next) {
                text.append(text.length() == 0 ? "" : ", ");
                text.append("[" + messages + ", " + now + "]");
                next = now + SAMPLE_SECONDS;
            }
        }

        String json(long messages, double seconds) {
            return String.format(
                "{\"messages\": %d, \"seconds\": %.6f, \"samples\": [%s]}",
                messages, seconds, text);
        }
    }

    static List<byte[]> lines(Path file) throws IOException {
        byte[] all = Files.readAllBytes(file);
        List<byte[]> found = new ArrayList<>();
        for (int at = 0; at + MESSAGE_BYTES <= all.length; at += MESSAGE_BYTES) {
            byte[] line = new byte[MESSAGE_BYTES];
            System.arraycopy(all, at, line, 0, MESSAGE_BYTES);
            found.add(line);
        }
        return found;
    }

    /** A real line with its number at the end: no two messages are the same. */
    static byte[] message(List<byte[]> lines, long number) {
        byte[] message = lines.get((int) (number % lines.size())).clone();
        for (int at = MESSAGE_BYTES - 1; at >= MESSAGE_BYTES - DIGITS; at--) {
            message[at] = (byte) ('0' + number % 10);
            number /= 10;
        }
        return message;
    }

    static long number(byte[] message) {
        if (message.length != MESSAGE_BYTES) {
            throw new IllegalStateException("a message of " + message.length + " bytes");
        }
        String digits = new String(
            message, MESSAGE_BYTES - DIGITS, DIGITS, StandardCharsets.US_ASCII);
        return Long.parseLong(digits);
    }

    /** At least so many messages, for at least so many seconds. */
    static String produce(Sender sender, List<byte[]> lines, double seconds, long least)
        throws Exception {
        long sent = 0;
        Samples samples = new Samples();
        Thread watch = new Thread(() -> {
            try {
                while (true) {
                    Thread.sleep(10);
                    samples.add(sender.acknowledged(), samples.seconds());
                }
            } catch (InterruptedException ended) {
                return;
            }
        });
        watch.start();
        try (sender) {
            while (samples.seconds() < seconds || sent < least) {
                for (int each = 0; each < 50; each++) {
                    sender.send(message(lines, sent++));
                }
            }
        } finally {
            watch.interrupt();
            watch.join();
        }
        double took = samples.seconds();
        return samples.json(sent, took);
    }

    static String consume(Receiver receiver, long count) throws Exception {
        long sum = 0;
        try (receiver) {
            sum += number(receiver.receive()); // the clock starts with the first message
            Samples samples = new Samples();
            for (long got = 1; got < count; got++) {
                sum += number(receiver.receive());
                if (got % 50 == 0) {
                    samples.add(got, samples.seconds());
                }
            }
            double seconds = samples.seconds();
            if (sum != count * (count - 1) / 2) {
                throw new IllegalStateException("not every message came exactly once");
            }
            return samples.json(count, seconds);
        }
    }

    public static void main(String[] args) throws Exception {
        String address = args[2];
        String name = args[3];
        boolean produces = args[1].equals("produce");
        int batch = produces ? Integer.parseInt(args[4]) : 0;
        Object side = switch (args[0]) {
            case "log" -> produces ? KafkaPaper.sender(address, name, batch)
                : KafkaPaper.receiver(address, name);
            case "activemq" -> produces ? ActiveMqPaper.sender(address, name, batch)
                : ActiveMqPaper.receiver(address, name);
            case "rabbitmq" -> produces ? RabbitMqPaper.sender(address, name)
                : RabbitMqPaper.receiver(address, name);
            default -> throw new IllegalArgumentException(args[0]);
        };
        System.out.println(
            produces
                ? produce((Sender) side, lines(Path.of(args[7])), Double.parseDouble(args[5]),
                    Long.parseLong(args[6]))
                : consume((Receiver) side, Long.parseLong(args[4])));
        System.exit(0);
    }
}
