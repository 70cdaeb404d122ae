import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.coordinator.group.generated.OffsetCommitKey;
import org.apache.kafka.coordinator.group.generated.OffsetCommitValue;

/** Kafka's own producer and consumer for the command "chaos": one writes all the while, the other is compared with us. */
public final class Chaos {
    public static void main(String[] args) throws Exception {
        switch (args[0]) {
            case "produce":
                produce(args[1], args[2], args[3], Integer.parseInt(args[4]), Integer.parseInt(args[5]),
                    Integer.parseInt(args[6]), Integer.parseInt(args[7]), Long.parseLong(args[8]));
                break;
            case "consume": consume(args[1], args[2], args[3], args[4], args[5], args[6]); break;
            case "commits": commits(args[1], args[2]); break;
            default: throw new IllegalArgumentException("unknown mode " + args[0]);
        }
        System.out.flush();
        System.exit(0);
    }

    /**
     * Numbered records at a rate until the standard input ends. Every key stays in one partition, so that its order has a
     * meaning when partitions are added: partition p has the keys p * keys up to (p + 1) * keys. Each fifth record goes to
     * the compacted topic, whose keys count for themselves. A line of the input is the new number of partitions. At the end:
     * TOPIC KEY COUNT of each key, then "all".
     */
    private static void produce(String bootstrap, String topic, String compacted, int partitions, int compactedPartitions,
            int keys, int rate, long seed) throws Exception {
        AtomicInteger now = new AtomicInteger(partitions);
        AtomicReference<Boolean> ended = new AtomicReference<>(false);
        Thread commands = new Thread(() -> {
            try {
                BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
                for (String line; (line = in.readLine()) != null; ) now.set(Integer.parseInt(line.trim()));
            } catch (IOException e) {
                // an input that cannot be read has ended too
            }
            ended.set(true);
        });
        commands.setDaemon(true);
        commands.start();
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("key.serializer", ByteArraySerializer.class);
        p.put("value.serializer", ByteArraySerializer.class);
        p.put("enable.idempotence", "true");
        p.put("acks", "all");
        p.put("linger.ms", "5");
        p.put("request.timeout.ms", "5000");
        p.put("delivery.timeout.ms", "600000"); // no record is given up: a hole would be ours to explain
        p.put("max.block.ms", "600000");
        Random random = new Random(seed);
        int[] sequence = new int[PARTITIONS_MAX * keys];
        int[] kept = new int[compactedPartitions * keys];
        AtomicReference<Exception> failed = new AtomicReference<>();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(p)) {
            long began = System.nanoTime();
            for (long n = 0; !ended.get() && failed.get() == null; n++) {
                long due = began + n * 1_000_000_000L / rate;
                long early = due - System.nanoTime();
                if (early > 2_000_000) Thread.sleep(early / 1_000_000);
                // Behind after a stall: the pace begins anew, no burst.
                if (early < -1_000_000_000L) began -= early;
                boolean compacts = n % 5 == 4;
                int key = random.nextInt(compacts ? kept.length : now.get() * keys);
                int[] of = compacts ? kept : sequence;
                byte[] value = (key + " " + of[key]++).getBytes(StandardCharsets.US_ASCII);
                byte[] name = ("key-" + key).getBytes(StandardCharsets.US_ASCII);
                producer.send(new ProducerRecord<>(compacts ? compacted : topic, key / keys, name, value), (at, e) -> {
                    if (e != null) failed.compareAndSet(null, e);
                });
            }
            producer.flush();
        }
        if (failed.get() != null) throw failed.get();
        for (int key = 0; key < sequence.length; key++) {
            if (sequence[key] > 0) System.out.println(topic + " " + key + " " + sequence[key]);
        }
        for (int key = 0; key < kept.length; key++) {
            if (kept[key] > 0) System.out.println(compacted + " " + key + " " + kept[key]);
        }
        System.out.println("all");
    }

    /** A member of a group that writes what it handles as handlings.rs says, commits after each poll, and has no other work. */
    private static void consume(String bootstrap, String group, String topic, String log, String protocol, String session)
            throws Exception {
        FileOutputStream file = new FileOutputStream(log, true);
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("group.id", group);
        p.put("key.deserializer", ByteArrayDeserializer.class);
        p.put("value.deserializer", ByteArrayDeserializer.class);
        p.put("auto.offset.reset", "earliest");
        p.put("enable.auto.commit", "false");
        String in = "org.apache.kafka.clients.consumer.";
        switch (protocol) {
            case "consumer": p.put("group.protocol", "consumer"); break;
            case "cooperative": p.put("partition.assignment.strategy", in + "CooperativeStickyAssignor"); break;
            case "eager": p.put("partition.assignment.strategy", in + "RangeAssignor"); break;
            default: throw new IllegalArgumentException("unknown protocol " + protocol);
        }
        if (!protocol.equals("consumer")) {
            p.put("session.timeout.ms", session);
            p.put("heartbeat.interval.ms", "1000");
        }
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(p);
        Thread closer = new Thread(() -> {
            try {
                while (System.in.read() != -1) { }
            } catch (IOException e) {
                // an input that cannot be read has ended too
            }
            consumer.wakeup();
        });
        closer.setDaemon(true);
        closer.start();
        consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
            public void onPartitionsAssigned(Collection<TopicPartition> of) {
                StringBuilder lines = new StringBuilder();
                for (TopicPartition tp : of) {
                    long position = consumer.position(tp);
                    lines.append("grant " + nanos() + " " + tp.partition() + " " + position + "\n");
                }
                write(file, lines);
            }
            public void onPartitionsRevoked(Collection<TopicPartition> of) { gone("revoke", of); }
            public void onPartitionsLost(Collection<TopicPartition> of) { gone("lost", of); }
            private void gone(String how, Collection<TopicPartition> of) {
                StringBuilder lines = new StringBuilder();
                for (TopicPartition tp : of) lines.append(how + " " + nanos() + " " + tp.partition() + "\n");
                write(file, lines);
            }
        });
        while (true) {
            try {
                StringBuilder lines = new StringBuilder();
                for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(200))) {
                    String at = " " + nanos() + " " + r.partition() + " " + r.offset();
                    String value = new String(r.value(), StandardCharsets.US_ASCII);
                    lines.append("start" + at + " " + value + "\nend" + at + "\n");
                }
                if (lines.length() == 0) continue;
                write(file, lines);
                consumer.commitSync();
            } catch (WakeupException e) {
                try {
                    consumer.close();
                } catch (KafkaException e2) {
                    System.err.println("close: " + e2);
                }
                System.out.println("closed");
                return;
            } catch (KafkaException e) {
                // A commit that came too late, a coordinator that is away: the next poll joins again.
                System.err.println(e);
            }
        }
    }

    /** Every commit of a group that Kafka has stored, in order: TOPIC PARTITION OFFSET MILLIS METADATA, the last as hex. */
    private static void commits(String bootstrap, String group) throws Exception {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("key.deserializer", ByteArrayDeserializer.class);
        p.put("value.deserializer", ByteArrayDeserializer.class);
        p.put("enable.auto.commit", "false");
        String stored = "__consumer_offsets";
        StringBuilder lines = new StringBuilder();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(p)) {
            List<TopicPartition> all = new ArrayList<>();
            consumer.partitionsFor(stored).forEach(i -> all.add(new TopicPartition(stored, i.partition())));
            consumer.assign(all);
            consumer.seekToBeginning(all);
            Map<TopicPartition, Long> ends = consumer.endOffsets(all);
            for (boolean more = true; more; ) {
                for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(200))) {
                    ByteBuffer name = ByteBuffer.wrap(r.key());
                    if (r.value() == null || name.getShort() > 1) continue; // a tombstone, or a group's own record
                    OffsetCommitKey key = new OffsetCommitKey(new ByteBufferAccessor(name), (short) 0);
                    if (!key.group().equals(group)) continue;
                    ByteBuffer stands = ByteBuffer.wrap(r.value());
                    short version = stands.getShort();
                    OffsetCommitValue value = new OffsetCommitValue(new ByteBufferAccessor(stands), version);
                    lines.append(key.topic() + " " + key.partition() + " " + value.offset() + " " + value.commitTimestamp() + " x");
                    for (byte b : value.metadata().getBytes(StandardCharsets.UTF_8)) lines.append(String.format("%02x", b));
                    lines.append('\n');
                }
                more = false;
                for (TopicPartition tp : all) more |= consumer.position(tp) < ends.get(tp);
            }
        }
        System.out.print(lines);
    }

    private static void write(FileOutputStream file, StringBuilder lines) {
        try {
            file.write(lines.toString().getBytes(StandardCharsets.US_ASCII));
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }

    private static long nanos() {
        java.time.Instant now = java.time.Instant.now();
        return now.getEpochSecond() * 1_000_000_000L + now.getNano();
    }

    /** As many as the command lets a topic have. */
    private static final int PARTITIONS_MAX = 64;
}
