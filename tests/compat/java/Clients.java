// What Java programs ask of a cluster by Kafka's own clients (producer, consumers, admin); a JSON line for each step.
//   java -cp … Clients.java HOST:PORT,… TOPIC GROUP
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class Clients {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration PATIENCE = Duration.ofSeconds(30);
    private static final StringSerializer INTO = new StringSerializer();
    private static final StringDeserializer FROM = new StringDeserializer();
    private static final List<String> CODECS = List.of("none", "gzip", "snappy", "lz4", "zstd");
    private final String servers;
    private final String topic;
    private final String group;
    private final TopicPartition first;
    private final Admin admin;

    private Clients(String servers, String topic, String group) {
        this.servers = servers;
        this.topic = topic;
        this.group = group;
        first = new TopicPartition(topic, 0);
        admin = Admin.create(settings(Map.of()));
    }

    private Map<String, Object> settings(Map<String, Object> more) {
        Map<String, Object> all = new LinkedHashMap<>(more);
        all.put("bootstrap.servers", servers);
        all.put("default.api.timeout.ms", (int) PATIENCE.toMillis());
        all.put("enable.metrics.push", true);
        return all;
    }

    private static void step(String name, Callable<Object> ask) throws Exception {
        Map<String, Object> told = new LinkedHashMap<>();
        told.put("step", name);
        try {
            told.put("answer", ask.call());
        } catch (Exception error) {
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            told.put("error", cause.getClass().getSimpleName());
            told.put("message", String.valueOf(cause.getMessage()));
        }
        System.out.println(JSON.writeValueAsString(told));
    }

    private static void asked(String name, Callable<KafkaFuture<?>> ask) throws Exception {
        step(name, () -> {
            ask.call().get();
            return null;
        });
    }

    private Object produce(String codec) throws Exception {
        Map<String, Object> how = settings(Map.of("compression.type", codec, "linger.ms", 20));
        try (var producer = new KafkaProducer<>(how, INTO, INTO)) {
            var row = new ProducerRecord<>(topic, 0, 1_700_000_000_000L, "k", codec);
            row.headers().add("h", "1".getBytes(StandardCharsets.UTF_8)).add("h", null);
            var sent = producer.send(row);
            var gone = producer.send(new ProducerRecord<>(topic, 0, 1_700_000_000_001L, "gone", (String) null));
            producer.send(new ProducerRecord<>(topic, 0, 1_700_000_000_002L, (String) null, (String) null)).get();
            return List.of(sent.get().offset(), gone.get().offset());
        }
    }

    private KafkaConsumer<String, String> consumer(String named, Map<String, Object> more) {
        Map<String, Object> how = new LinkedHashMap<>(more);
        how.put("group.id", named);
        how.put("auto.offset.reset", "earliest");
        return new KafkaConsumer<>(settings(how), FROM, FROM);
    }

    private static List<Object> read(Consumer<String, String> consumer, int count) {
        List<Object> rows = new ArrayList<>();
        while (rows.size() < count) {
            for (ConsumerRecord<String, String> row : consumer.poll(PATIENCE)) {
                List<Object> headers = new ArrayList<>();
                for (Header each : row.headers()) {
                    byte[] value = each.value();
                    headers.add(value == null ? "null" : new String(value, StandardCharsets.UTF_8));
                }
                List<Object> parts = new ArrayList<>(List.of(row.offset(), headers, row.timestamp() % 1000));
                parts.add(row.key());
                parts.add(row.value());
                rows.add(parts);
            }
        }
        return rows;
    }

    private Object consume() {
        try (var consumer = consumer(group, Map.of())) {
            consumer.subscribe(List.of(topic));
            List<Object> rows = read(consumer, 3 * CODECS.size());
            consumer.commitSync(Map.of(first, new OffsetAndMetadata(7, "seven")));
            OffsetAndMetadata kept = consumer.committed(Set.of(first)).get(first);
            return List.of(rows, kept.offset(), kept.metadata());
        }
    }

    private Object seek() {
        try (var consumer = consumer(group + "-seek", Map.of("enable.auto.commit", false))) {
            consumer.assign(List.of(first));
            long at = consumer.offsetsForTimes(Map.of(first, 1_700_000_000_001L)).get(first).offset();
            long end = consumer.endOffsets(List.of(first)).get(first);
            long start = consumer.beginningOffsets(List.of(first)).get(first);
            consumer.seek(first, end - 2);
            List<Object> rows = read(consumer, 2);
            consumer.seekToBeginning(List.of(first));
            return List.of(at, start, end, rows, consumer.position(first), consumer.partitionsFor(topic).size());
        }
    }

    private void served() throws Exception {
        asked("createTopics", () -> admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1))).all());
        for (String codec : CODECS) {
            step("produce " + codec, () -> produce(codec));
        }
        step("consume", this::consume);
        step("seek", this::seek);
        // Kafka's own has DescribeTopicPartitions for it, and goes by Metadata where that is not named.
        step("describeTopics", () ->
            admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size());
        step("describeCluster", () -> admin.describeCluster().nodes().get().size());
        step("describeConsumerGroups", () ->
            admin.describeConsumerGroups(List.of(group)).all().get().get(group).groupState().toString());
        step("describeClassicGroups", () ->
            admin.describeClassicGroups(List.of(group)).all().get().get(group).state().toString());
        step("listGroups", () ->
            admin.listGroups().all().get().stream().anyMatch(row -> row.groupId().equals(group)));
        step("listOffsets", () -> {
            List<Long> found = new ArrayList<>();
            for (OffsetSpec at : List.of(OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.maxTimestamp())) {
                found.add(admin.listOffsets(Map.of(first, at)).partitionResult(first).get().offset());
            }
            return found;
        });
        asked("alterConsumerGroupOffsets", () ->
            admin.alterConsumerGroupOffsets(group, Map.of(first, new OffsetAndMetadata(3))).all());
        asked("describeReplicaLogDirs", () ->
            admin.describeReplicaLogDirs(Set.of(new TopicPartitionReplica(topic, 0, 0))).all());
        asked("listPartitionReassignments", () -> admin.listPartitionReassignments().reassignments());
        asked("electLeaders", () -> admin.electLeaders(ElectionType.UNCLEAN, Set.of(first)).partitions());
        step("describeFeatures", () ->
            admin.describeFeatures().featureMetadata().get().finalizedFeatures().keySet());
        asked("deleteConsumerGroups", () -> admin.deleteConsumerGroups(List.of(group)).all());
    }

    private void settingsNotServed() throws Exception {
        var rule = new AccessControlEntry("User:a", "*", AclOperation.READ, AclPermissionType.ALLOW);
        var acl = new AclBinding(new ResourcePattern(ResourceType.TOPIC, topic, PatternType.LITERAL), rule);
        asked("describeAcls", () -> admin.describeAcls(AclBindingFilter.ANY).values());
        asked("createAcls", () -> admin.createAcls(List.of(acl)).all());
        asked("deleteAcls", () -> admin.deleteAcls(List.of(acl.toFilter())).all());
        var user = new ClientQuotaEntity(Map.of("user", "a"));
        var limit = new ClientQuotaAlteration.Op("producer_byte_rate", 1.0);
        asked("describeClientQuotas", () -> admin.describeClientQuotas(ClientQuotaFilter.all()).entities());
        asked("alterClientQuotas", () ->
            admin.alterClientQuotas(List.of(new ClientQuotaAlteration(user, List.of(limit)))).all());
        var scram = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096);
        asked("describeUserScramCredentials", () -> admin.describeUserScramCredentials().all());
        asked("alterUserScramCredentials", () ->
            admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion("a", scram, "b"))).all());
        asked("createDelegationToken", () -> admin.createDelegationToken().delegationToken());
        asked("renewDelegationToken", () -> admin.renewDelegationToken(new byte[1]).expiryTimestamp());
        asked("expireDelegationToken", () -> admin.expireDelegationToken(new byte[1]).expiryTimestamp());
        asked("describeDelegationToken", () -> admin.describeDelegationToken().delegationTokens());
        asked("listConfigResources", () -> admin.listConfigResources().all());
        asked("listClientMetricsResources", () -> admin.listClientMetricsResources().all());
        for (ConfigResource.Type type : ConfigResource.Type.values()) {
            boolean isServed = type == ConfigResource.Type.TOPIC || type == ConfigResource.Type.BROKER;
            if (!isServed && type != ConfigResource.Type.UNKNOWN) {
                var resource = new ConfigResource(type, type == ConfigResource.Type.BROKER_LOGGER ? "0" : "a");
                asked("describeConfigs " + type, () -> admin.describeConfigs(List.of(resource)).all());
                var change = new AlterConfigOp(new ConfigEntry("a", "1"), AlterConfigOp.OpType.SET);
                asked("incrementalAlterConfigs " + type, () ->
                    admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all());
            }
        }
    }

    private void clusterNotServed() throws Exception {
        asked("describeMetadataQuorum", () -> admin.describeMetadataQuorum().quorumInfo());
        var endpoint = new RaftVoterEndpoint("CONTROLLER", "127.0.0.1", 9);
        asked("addRaftVoter", () -> admin.addRaftVoter(1, Uuid.ONE_UUID, Set.of(endpoint)).all());
        asked("removeRaftVoter", () -> admin.removeRaftVoter(1, Uuid.ONE_UUID).all());
        var update = new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.UPGRADE);
        asked("updateFeatures", () -> admin.updateFeatures(Map.of("metadata.version", update)).all());
        var replica = new TopicPartitionReplica(topic, 0, 0);
        asked("alterReplicaLogDirs", () -> admin.alterReplicaLogDirs(Map.of(replica, "/nowhere")).all());
        // Null where no broker takes clients' metrics, as with a Kafka of whose brokers none keeps them.
        step("clientInstanceId", () -> admin.clientInstanceId(Duration.ofSeconds(1)));
        asked("listOffsets earliestLocal", () ->
            admin.listOffsets(Map.of(first, OffsetSpec.earliestLocal())).all());
        asked("listOffsets latestTiered", () ->
            admin.listOffsets(Map.of(first, OffsetSpec.latestTiered())).all());
    }

    private void transactions() throws Exception {
        asked("listTransactions", () -> admin.listTransactions().all());
        asked("describeTransactions", () -> admin.describeTransactions(List.of("t")).all());
        asked("describeProducers", () -> admin.describeProducers(List.of(first)).all());
        asked("abortTransaction", () ->
            admin.abortTransaction(new AbortTransactionSpec(first, 1, (short) 1, 1)).all());
        asked("fenceProducers", () -> admin.fenceProducers(List.of("t")).all());
        asked("forceTerminateTransaction", () -> admin.forceTerminateTransaction("t").result());
        step("initTransactions", () -> {
            try (var producer = new KafkaProducer<>(settings(Map.of("transactional.id", "t")), INTO, INTO)) {
                producer.initTransactions();
                return null;
            }
        });
    }

    private void groupsNotServed() throws Exception {
        step("group.protocol=consumer", () -> {
            try (var consumer = consumer(group, Map.of("group.protocol", "consumer"))) {
                consumer.subscribe(List.of(topic));
                return consumer.poll(PATIENCE).count();
            }
        });
        step("KafkaShareConsumer", () -> {
            var consumer = new KafkaShareConsumer<>(settings(Map.of("group.id", group)), FROM, FROM);
            try {
                consumer.subscribe(List.of(topic));
                return consumer.poll(PATIENCE).count();
            } finally {
                // It waits for as long as it may to leave what it could not join.
                consumer.close(Duration.ofMillis(100));
            }
        });
        asked("describeShareGroups", () -> admin.describeShareGroups(List.of(group)).all());
        asked("listShareGroupOffsets", () ->
            admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec())).all());
        asked("alterShareGroupOffsets", () -> admin.alterShareGroupOffsets(group, Map.of(first, 0L)).all());
        asked("deleteShareGroupOffsets", () -> admin.deleteShareGroupOffsets(group, Set.of(topic)).all());
        asked("describeStreamsGroups", () -> admin.describeStreamsGroups(List.of(group)).all());
    }

    public static void main(String[] arguments) throws Exception {
        Clients clients = new Clients(arguments[0], arguments[1], arguments[2]);
        clients.served();
        clients.settingsNotServed();
        clients.clusterNotServed();
        clients.transactions();
        clients.groupsNotServed();
        clients.admin.close();
    }
}
