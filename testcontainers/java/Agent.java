import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's own clients behind lines of text, so that the Rust tests can hear what Java says of the same records.
 *
 * A record is one line: partition, offset, timestamp, key, value, headers. Bytes are "-" for null, else "x" and hex
 * digits (so "x" alone is empty); headers are "-" for none, else NAME=VALUE joined by commas.
 */
public final class Agent {
    /** Of each topic that "numbered" wrote to: each key's next sequence number. */
    private static final Map<String, int[]> SEQUENCES = new HashMap<>();

    /** One command may take this long at the broker. */
    private static final int REQUEST_MS = 60_000;

    private static final PrintStream out =
        new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false, StandardCharsets.UTF_8);

    public static void main(String[] args) throws Exception {
        switch (args[0]) {
            case "serve": serve(args[1]); break;
            case "consume": consume(args[1], args[2], args[3], args[4]); break;
            default: throw new IllegalArgumentException("unknown mode " + args[0]);
        }
        out.flush();
        System.exit(0); // clients' threads may linger; everything they owe is flushed
    }

    // ---- serve: one command a line, its output, then "END ok" or "END error REASON"

    private static void serve(String bootstrap) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (Admin admin = Admin.create(common(bootstrap))) {
            for (String line; (line = in.readLine()) != null; ) {
                String end;
                try {
                    command(admin, bootstrap, line.split(" "));
                    end = "END ok";
                } catch (Exception | Error e) {
                    Throwable cause = e.getCause() == null ? e : e.getCause();
                    end = "END error " + cause.toString().replace('\n', ' ');
                }
                out.println(end);
                out.flush();
            }
        }
    }

    private static void command(Admin admin, String bootstrap, String[] a) throws Exception {
        switch (a[0]) {
            case "nodes":
                out.println(admin.describeCluster().nodes().get().size());
                break;
            case "create": {
                NewTopic topic = new NewTopic(a[1], Integer.parseInt(a[2]), (short) Integer.parseInt(a[3]));
                Map<String, String> configs = new HashMap<>();
                for (int i = 4; i < a.length; i++) {
                    int eq = a[i].indexOf('=');
                    configs.put(a[i].substring(0, eq), a[i].substring(eq + 1));
                }
                admin.createTopics(List.of(topic.configs(configs))).all().get();
                break;
            }
            case "grow":
                admin.createPartitions(Map.of(a[1], NewPartitions.increaseTo(Integer.parseInt(a[2])))).all().get();
                break;
            case "coordinator": // the node that a group's commits go to
                out.println(admin.describeConsumerGroups(List.of(a[1])).all().get().get(a[1]).coordinator().id());
                break;
            case "behind": // partitions that have fewer copies in step than they should
                out.println(behind(admin));
                break;
            case "move": // every partition's first copy becomes its last, and its leader the first
                move(admin, a[1]);
                break;
            case "delete":
                admin.deleteTopics(List.of(a[1])).all().get();
                break;
            case "ends":
                ends(admin, a[1]);
                break;
            case "committed":
                committed(admin, a[1]);
                break;
            case "group":
                group(admin, a[1]);
                break;
            case "every-codec":
                everyCodec(bootstrap, a[1], Integer.parseInt(a[2]), Long.parseLong(a[3]), true);
                break;
            case "every-old-codec": // for topics that store message sets: those know neither headers nor zstd
                everyCodec(bootstrap, a[1], Integer.parseInt(a[2]), Long.parseLong(a[3]), false);
                break;
            case "numbered":
                numbered(bootstrap, a[1], Integer.parseInt(a[2]), Integer.parseInt(a[3]), Integer.parseInt(a[4]),
                    Long.parseLong(a[5]));
                break;
            case "transactions":
                transactions(bootstrap, a[1], Integer.parseInt(a[2]), a[3]);
                break;
            case "read":
                read(bootstrap, a[1], a[2]);
                break;
            default:
                throw new IllegalArgumentException("unknown command " + a[0]);
        }
    }

    private static int behind(Admin admin) throws Exception {
        var names = admin.listTopics(new ListTopicsOptions().listInternal(true)).names().get();
        int behind = 0;
        for (TopicDescription topic : admin.describeTopics(names).allTopicNames().get().values()) {
            for (TopicPartitionInfo p : topic.partitions()) {
                if (p.leader() == null || p.isr().size() < p.replicas().size()) behind++;
            }
        }
        return behind;
    }

    private static void move(Admin admin, String topic) throws Exception {
        Map<TopicPartition, Optional<NewPartitionReassignment>> moves = new HashMap<>();
        admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().forEach(p -> {
            List<Integer> copies = new ArrayList<>();
            p.replicas().forEach(node -> copies.add(node.id()));
            Collections.rotate(copies, -1);
            moves.put(new TopicPartition(topic, p.partition()), Optional.of(new NewPartitionReassignment(copies)));
        });
        admin.alterPartitionReassignments(moves).all().get();
        admin.electLeaders(ElectionType.PREFERRED, moves.keySet()).partitions().get();
    }

    private static void ends(Admin admin, String topic) throws Exception {
        Map<TopicPartition, OffsetSpec> low = new HashMap<>();
        Map<TopicPartition, OffsetSpec> high = new HashMap<>();
        admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().forEach(p -> {
            low.put(new TopicPartition(topic, p.partition()), OffsetSpec.earliest());
            high.put(new TopicPartition(topic, p.partition()), OffsetSpec.latest());
        });
        Map<Integer, String> lines = new TreeMap<>();
        var lows = admin.listOffsets(low).all().get();
        admin.listOffsets(high).all().get().forEach((tp, end) ->
            lines.put(tp.partition(), tp.partition() + " " + lows.get(tp).offset() + " " + end.offset()));
        lines.values().forEach(out::println);
    }

    private static void committed(Admin admin, String group) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> all =
            admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
        all.forEach((tp, at) -> {
            if (at != null) {
                out.println(tp.topic() + " " + tp.partition() + " " + at.offset() + " " + at.leaderEpoch().orElse(-1)
                    + " " + hex(at.metadata().getBytes(StandardCharsets.UTF_8)));
            }
        });
    }

    private static void group(Admin admin, String group) throws Exception {
        ConsumerGroupDescription of = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
        for (MemberDescription m : of.members()) {
            StringBuilder partitions = new StringBuilder();
            for (TopicPartition tp : m.assignment().topicPartitions()) {
                partitions.append(partitions.length() == 0 ? "" : ",").append(tp);
            }
            out.println(m.clientId() + " " + (partitions.length() == 0 ? "-" : partitions));
        }
    }

    /** n records with each codec: null and empty keys and values, headers of every shape, times, sizes up to 900 kB. */
    private static void everyCodec(String bootstrap, String topic, int n, long seed, boolean now) throws Exception {
        Random random = new Random(seed);
        List<String> codecs = List.of("none", "gzip", "snappy", "lz4", "zstd");
        for (String codec : now ? codecs : codecs.subList(0, 4)) {
            Properties p = producing(bootstrap);
            if (!now) p.put("enable.idempotence", "false");
            p.put("compression.type", codec);
            p.put("batch.size", "65536");
            p.put("linger.ms", "100");
            try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(p)) {
                int partitions = producer.partitionsFor(topic).size();
                List<ProducerRecord<byte[], byte[]>> sent = new ArrayList<>();
                List<Future<RecordMetadata>> acks = new ArrayList<>();
                for (int i = 0; i < n; i++) {
                    Long time = i % 10 == 9 ? null : i % 10 == 8 ? Long.valueOf(0) : Long.valueOf(1_600_000_000_000L + 977L * i);
                    byte[] key = i % 7 == 3 ? null : i % 11 == 4 ? new byte[0] : bytes(random, 1 + random.nextInt(40), true);
                    int size = i == n / 2 ? 900_000 : i % 50 == 17 ? 30_000 : random.nextInt(1200);
                    byte[] value = i % 5 == 2 ? null : i % 13 == 5 ? new byte[0] : bytes(random, size, i % 3 != 0);
                    sent.add(new ProducerRecord<>(topic, i % partitions, time, key, value,
                        now ? headers(random, i) : List.of()));
                    acks.add(producer.send(sent.get(i)));
                }
                for (int i = 0; i < n; i++) {
                    RecordMetadata at = acks.get(i).get();
                    ProducerRecord<byte[], byte[]> r = sent.get(i);
                    print(at.partition(), at.offset(), at.timestamp(), r.key(), r.value(), r.headers());
                }
            }
        }
    }

    private static byte[] bytes(Random random, int size, boolean compressible) {
        byte[] b = new byte[size];
        if (compressible) {
            byte[] words = "{\"lane\":7,\"payment\":\"accepted\",\"note\":\"\u00fc\u4e2d\"}".getBytes(StandardCharsets.UTF_8);
            int shift = random.nextInt(words.length);
            for (int i = 0; i < size; i++) b[i] = words[(i + shift) % words.length];
        } else {
            random.nextBytes(b);
        }
        return b;
    }

    private static List<Header> headers(Random random, int i) {
        List<Header> headers = new ArrayList<>();
        if (i % 4 == 0) return headers;
        headers.add(new RecordHeader("trace", bytes(random, 16, false)));
        if (i % 4 > 1) headers.add(new RecordHeader("trace", null));            // a repeated name, a null value
        if (i % 4 > 2) headers.add(new RecordHeader("", new byte[0]));          // an empty name and value
        if (i % 9 == 5) headers.add(new RecordHeader("\u00fcber-\u4e2d", "\u00df".getBytes(StandardCharsets.UTF_8)));
        return headers;
    }

    /** n keyed records in a seeded order of keys; the value says "KEY SEQUENCE", padded with spaces to a size. */
    private static void numbered(String bootstrap, String topic, int n, int keys, int size, long seed) throws Exception {
        Properties p = producing(bootstrap);
        p.put("linger.ms", "20");
        Random random = new Random(seed);
        int[] sequence = SEQUENCES.computeIfAbsent(topic, t -> new int[keys]); // goes on where an earlier call ended
        List<Future<RecordMetadata>> acks = new ArrayList<>(n);
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(p)) {
            for (int i = 0; i < n; i++) {
                int key = random.nextInt(keys);
                String value = key + " " + sequence[key]++;
                byte[] padded = new byte[Math.max(size, value.length())];
                Arrays.fill(padded, (byte) ' ');
                System.arraycopy(value.getBytes(StandardCharsets.US_ASCII), 0, padded, 0, value.length());
                acks.add(producer.send(new ProducerRecord<>(topic, ("key-" + key).getBytes(StandardCharsets.US_ASCII), padded)));
            }
            for (Future<RecordMetadata> ack : acks) ack.get();
        }
        for (int key = 0; key < keys; key++) out.println(key + " " + sequence[key]);
    }

    /** One transaction a letter of the plan: c commits its n records, a aborts them; prints those committed. */
    private static void transactions(String bootstrap, String topic, int n, String plan) throws Exception {
        Properties p = producing(bootstrap);
        p.put("compression.type", "gzip");
        p.put("transactional.id", "agent-" + topic);
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(p)) {
            producer.initTransactions();
            for (int t = 0; t < plan.length(); t++) {
                producer.beginTransaction();
                List<ProducerRecord<byte[], byte[]>> sent = new ArrayList<>();
                List<Future<RecordMetadata>> acks = new ArrayList<>();
                for (int i = 0; i < n; i++) {
                    byte[] text = (plan.charAt(t) + "-" + t + "-" + i).getBytes(StandardCharsets.US_ASCII);
                    sent.add(new ProducerRecord<>(topic, text, text));
                    acks.add(producer.send(sent.get(i)));
                }
                if (plan.charAt(t) == 'a') {
                    producer.flush();
                    producer.abortTransaction();
                    continue;
                }
                producer.commitTransaction();
                for (int i = 0; i < n; i++) {
                    RecordMetadata at = acks.get(i).get();
                    print(at.partition(), at.offset(), at.timestamp(), sent.get(i).key(), sent.get(i).value(), sent.get(i).headers());
                }
            }
        }
    }

    /** The whole topic as Java's consumer sees it now. */
    private static void read(String bootstrap, String topic, String isolation) throws Exception {
        Properties p = consuming(bootstrap);
        p.put("isolation.level", isolation);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(p)) {
            List<TopicPartition> all = new ArrayList<>();
            consumer.partitionsFor(topic).forEach(i -> all.add(new TopicPartition(topic, i.partition())));
            consumer.assign(all);
            consumer.seekToBeginning(all);
            Map<TopicPartition, Long> ends = consumer.endOffsets(all);
            while (true) {
                for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(200))) {
                    print(r.partition(), r.offset(), r.timestamp(), r.key(), r.value(), r.headers());
                }
                boolean more = false;
                for (TopicPartition tp : all) more |= consumer.position(tp) < ends.get(tp);
                if (!more) return;
            }
        }
    }

    // ---- consume: a member of a group, until its standard input ends

    private static void consume(String bootstrap, String group, String topic, String assignors) throws Exception {
        Properties p = consuming(bootstrap);
        p.put("group.id", group);
        p.put("client.id", "java-member");
        p.put("session.timeout.ms", "6000");
        p.put("heartbeat.interval.ms", "500");
        List<String> classes = new ArrayList<>();
        for (String name : assignors.split(",")) {
            String in = "org.apache.kafka.clients.consumer.";
            switch (name) {
                case "range": classes.add(in + "RangeAssignor"); break;
                case "roundrobin": classes.add(in + "RoundRobinAssignor"); break;
                case "sticky": classes.add(in + "StickyAssignor"); break;
                case "cooperative-sticky": classes.add(in + "CooperativeStickyAssignor"); break;
                default: throw new IllegalArgumentException("unknown assignor " + name);
            }
        }
        p.put("partition.assignment.strategy", classes);
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(p);
        Thread closer = new Thread(() -> {
            try {
                while (System.in.read() != -1) { }
            } catch (java.io.IOException e) {
                // an input that cannot be read has ended too
            }
            consumer.wakeup();
        });
        closer.setDaemon(true);
        closer.start();
        consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
            public void onPartitionsAssigned(Collection<TopicPartition> of) {
                change("assigned", of);
                for (TopicPartition tp : of) {
                    long position = consumer.position(tp);
                    out.println("granted " + nanos() + " " + tp.partition() + " " + position);
                }
            }
            public void onPartitionsRevoked(Collection<TopicPartition> of) { change("revoked", of); }
            public void onPartitionsLost(Collection<TopicPartition> of) { change("lost", of); }
        });
        try {
            while (true) {
                var polled = consumer.poll(Duration.ofMillis(200));
                for (ConsumerRecord<byte[], byte[]> r : polled) {
                    out.print("record " + nanos() + " ");
                    print(r.partition(), r.offset(), r.timestamp(), r.key(), r.value(), r.headers());
                }
                out.flush();
                if (!polled.isEmpty()) consumer.commitSync();
            }
        } catch (WakeupException e) {
            consumer.close();
            out.println("closed");
        }
    }

    private static long nanos() {
        java.time.Instant now = java.time.Instant.now();
        return now.getEpochSecond() * 1_000_000_000L + now.getNano();
    }

    private static void change(String what, Collection<TopicPartition> of) {
        StringBuilder line = new StringBuilder(what);
        for (TopicPartition tp : of) line.append(' ').append(tp.partition());
        out.println(line);
        out.flush();
    }

    // ---- settings and printing

    private static Properties common(String bootstrap) {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("request.timeout.ms", String.valueOf(REQUEST_MS / 4));
        p.put("default.api.timeout.ms", String.valueOf(REQUEST_MS));
        return p;
    }

    private static Properties producing(String bootstrap) {
        Properties p = common(bootstrap);
        p.remove("default.api.timeout.ms");
        p.put("request.timeout.ms", String.valueOf(REQUEST_MS)); // a busy machine is no reason to send again
        p.put("key.serializer", ByteArraySerializer.class);
        p.put("value.serializer", ByteArraySerializer.class);
        p.put("enable.idempotence", "true");
        p.put("acks", "all");
        p.put("max.request.size", "2097152");
        return p;
    }

    private static Properties consuming(String bootstrap) {
        Properties p = common(bootstrap);
        p.put("key.deserializer", ByteArrayDeserializer.class);
        p.put("value.deserializer", ByteArrayDeserializer.class);
        p.put("auto.offset.reset", "earliest");
        p.put("enable.auto.commit", "false");
        return p;
    }

    private static void print(int partition, long offset, long time, byte[] key, byte[] value, Iterable<Header> headers) {
        StringBuilder line = new StringBuilder();
        line.append(partition).append(' ').append(offset).append(' ').append(time).append(' ');
        line.append(hex(key)).append(' ').append(hex(value)).append(' ');
        String comma = "";
        for (Header h : headers) {
            line.append(comma).append(hex(h.key().getBytes(StandardCharsets.UTF_8))).append('=').append(hex(h.value()));
            comma = ",";
        }
        if (comma.isEmpty()) line.append('-');
        out.println(line);
    }

    private static final char[] DIGITS = "0123456789abcdef".toCharArray();

    private static String hex(byte[] bytes) {
        if (bytes == null) return "-";
        char[] chars = new char[bytes.length * 2 + 1];
        chars[0] = 'x';
        for (int i = 0; i < bytes.length; i++) {
            chars[2 * i + 1] = DIGITS[(bytes[i] >> 4) & 15];
            chars[2 * i + 2] = DIGITS[bytes[i] & 15];
        }
        return new String(chars);
    }
}
