// scenario: 200-mb-acknowledged: an idempotent producer with acks=all writes 200 MB while the broker goes away: nothing acknowledged is lost, nothing is twice
// tier: normal
// limit: 240
// needs: kafka-4.4.0
// each: restart kill
// shows: java-4.4.0: idempotent $WITH

import java.io.*;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.atomic.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

/** Half-way through, the broker is stopped by SIGTERM (restart) or killed with -9 (kill) and started again. */
public class Acknowledged {
  static final int RECORDS = 1_000_000, PARTITIONS = 4, SIZE = 200;

  static Map<String, Object> with(Object... more) {
    Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", System.getenv("BOOTSTRAP")));
    for (int i = 0; i < more.length; i += 2) settings.put((String) more[i], more[i + 1]);
    return settings;
  }

  static void fail(String why) {
    System.out.println("FAILED " + why);
    Runtime.getRuntime().halt(1);
  }

  public static void main(String[] unused) throws Exception {
    BufferedReader answers = new BufferedReader(new InputStreamReader(System.in));
    try (Admin admin = Admin.create(with())) {
      admin.createTopics(List.of(new NewTopic("numbers", PARTITIONS, (short) 1))).all().get();
    }
    long[] acknowledged = new long[RECORDS]; // offset + 1
    AtomicInteger count = new AtomicInteger();
    AtomicReference<Exception> error = new AtomicReference<>();
    Thread middle = new Thread(() -> {
      try {
        while (count.get() < RECORDS / 2) Thread.sleep(1);
        System.out.println("@" + System.getenv("WITH"));
        String answer = answers.readLine();
        if (!answer.startsWith("ok")) fail(answer);
        System.out.println("the broker is back after " + count.get() + " acknowledgements");
      } catch (Exception e) {
        fail(e.toString());
      }
    });
    middle.start();
    var settings = with("acks", "all", "enable.idempotence", true, "linger.ms", 5, "batch.size", 65536, "delivery.timeout.ms", 200_000, "request.timeout.ms", 15_000, "reconnect.backoff.max.ms", 500, "max.block.ms", 200_000, "buffer.memory", 16_000_000L);
    try (var producer = new KafkaProducer<>(settings, new IntegerSerializer(), new ByteArraySerializer())) {
      for (int i = 0; i < RECORDS; i++) {
        int number = i;
        byte[] value = ByteBuffer.allocate(SIZE).putInt(i).array();
        producer.send(new ProducerRecord<>("numbers", i % PARTITIONS, i, value), (metadata, e) -> {
          if (e != null) error.compareAndSet(null, e);
          else { acknowledged[number] = metadata.offset() + 1; count.incrementAndGet(); }
        });
      }
    }
    middle.join();
    if (error.get() != null) fail("a send failed: " + error.get());
    if (count.get() != RECORDS) fail(count.get() + " acknowledgements");
    System.out.println("ok all " + RECORDS + " are acknowledged");

    int[] last = new int[PARTITIONS];
    Arrays.fill(last, -1);
    int seen = 0;
    try (var consumer = new KafkaConsumer<>(with("fetch.max.wait.ms", 100, "max.poll.records", 10_000), new IntegerDeserializer(), new ByteArrayDeserializer())) {
      List<TopicPartition> partitions = new ArrayList<>();
      for (int p = 0; p < PARTITIONS; p++) partitions.add(new TopicPartition("numbers", p));
      consumer.assign(partitions);
      consumer.seekToBeginning(partitions);
      Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
      while (partitions.stream().anyMatch(p -> consumer.position(p) < ends.get(p))) {
        for (var record : consumer.poll(Duration.ofSeconds(5))) {
          int number = ByteBuffer.wrap(record.value()).getInt(), partition = record.partition();
          if (number != record.key() || record.value().length != SIZE) fail("another value at " + record);
          if (number % PARTITIONS != partition) fail(number + " is in partition " + partition);
          // each partition holds p, p+4, p+8, …: the next one says at once that nothing is lost, twice or out of order
          if (number != (last[partition] < 0 ? partition : last[partition] + PARTITIONS)) fail(number + " follows " + last[partition] + " in partition " + partition + " at offset " + record.offset());
          if (acknowledged[number] != record.offset() + 1) fail(number + " was acknowledged at " + (acknowledged[number] - 1) + " but is at " + record.offset());
          last[partition] = number;
          seen++;
        }
      }
    }
    if (seen != RECORDS) fail("only " + seen + " are there");
    System.out.println("ok each is there once, in order, at the offset that was acknowledged");
    Runtime.getRuntime().halt(0);
  }
}
