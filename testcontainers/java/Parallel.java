import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.HashSet;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * The Confluent Parallel Consumer as a member of a group: records of one key run in order, those of the keys that the
 * fourth argument lists fail for ever, so that they stay open below what is done. Every record that is done is a line,
 * as the agent's consumer prints it. When the input ends it closes and says so.
 */
public final class Parallel {
    private static final PrintStream out =
        new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false, StandardCharsets.UTF_8);

    public static void main(String[] args) throws Exception {
        String bootstrap = args[0], group = args[1], topic = args[2];
        Set<String> held = new HashSet<>();
        for (String key : (args.length > 3 ? args[3] : "").split(",")) {
            if (!key.isEmpty()) held.add("key-" + key);
        }
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("group.id", group);
        p.put("client.id", "parallel-consumer");
        p.put("auto.offset.reset", "earliest");
        p.put("enable.auto.commit", "false");
        p.put("session.timeout.ms", "6000");
        p.put("heartbeat.interval.ms", "500");
        KafkaConsumer<byte[], byte[]> consumer =
            new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        // Its default commits while results come in, and may then file a map under another offset than its own.
        var options = ParallelConsumerOptions.<byte[], byte[]>builder()
            .consumer(consumer)
            .ordering(ProcessingOrder.KEY)
            .maxConcurrency(64)
            // Records of held keys count as loaded, and with the usual bound nothing else would be.
            .messageBufferSize(50_000)
            .commitMode(CommitMode.PERIODIC_CONSUMER_SYNC)
            .commitInterval(Duration.ofMillis(200))
            .defaultMessageRetryDelay(Duration.ofMillis(300))
            .build();
        var parallel = ParallelStreamProcessor.createEosStreamProcessor(options);
        parallel.subscribe(List.of(topic));
        parallel.poll(context -> {
            ConsumerRecord<byte[], byte[]> r = context.getSingleConsumerRecord();
            if (held.contains(new String(r.key(), StandardCharsets.UTF_8))) {
                throw new IllegalStateException("its key is held");
            }
            synchronized (out) {
                out.println("record " + nanos() + " " + r.partition() + " " + r.offset() + " " + r.timestamp() + " "
                    + hex(r.key()) + " " + hex(r.value()) + " -");
                out.flush();
            }
        });
        while (System.in.read() != -1) { }
        parallel.closeDontDrainFirst(Duration.ofSeconds(20));
        out.println("closed");
        out.flush();
        System.exit(0);
    }

    private static long nanos() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000_000L + now.getNano();
    }

    private static String hex(byte[] bytes) {
        if (bytes == null) return "-";
        StringBuilder s = new StringBuilder("x");
        for (byte b : bytes) s.append(String.format("%02x", b));
        return s.toString();
    }
}
