import java.io.*;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** A member of a group (clients/python/members.py has the protocol), for every Java client from 0.10.1 on. */
public class GroupMember implements ConsumerRebalanceListener {
  static final Map<String, String> ASSIGNORS = Map.of("range", "RangeAssignor", "cooperative-sticky", "CooperativeStickyAssignor");
  final KafkaConsumer<byte[], byte[]> consumer;
  final Map<TopicPartition, OffsetAndMetadata> pending = new HashMap<>();
  final TreeSet<Integer> assigned = new TreeSet<>();
  final PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true);
  volatile boolean leaves;

  GroupMember(Map<String, Object> settings) {
    consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
  }

  @SuppressWarnings("unchecked")
  ConsumerRecords<byte[], byte[]> poll() throws Exception {
    try {
      return (ConsumerRecords<byte[], byte[]>) KafkaConsumer.class.getMethod("poll", java.time.Duration.class).invoke(consumer, java.time.Duration.ofMillis(100));
    } catch (NoSuchMethodException before20) {
      return (ConsumerRecords<byte[], byte[]>) KafkaConsumer.class.getMethod("poll", long.class).invoke(consumer, 100L);
    }
  }

  void commit() {
    if (pending.isEmpty()) return;
    try {
      consumer.commitSync(pending);
      pending.forEach((partition, offset) -> out.println("committed " + partition.partition() + " " + offset.offset()));
      pending.clear();
    } catch (KafkaException error) {
      out.println("said " + error); // the group rebalances: again after it, or when partitions are taken
    }
  }

  @Override public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
    commit();
    onPartitionsLost(partitions);
  }

  /** Since 2.4. */
  public void onPartitionsLost(Collection<TopicPartition> partitions) {
    for (TopicPartition partition : partitions) {
      pending.remove(partition);
      assigned.remove(partition.partition());
    }
    tell();
  }

  @Override public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
    for (TopicPartition partition : partitions) assigned.add(partition.partition());
    tell();
  }

  void tell() { out.println("assigned " + String.join(" ", (Iterable<String>) assigned.stream().map(String::valueOf)::iterator)); }

  void run(String topic) throws Exception {
    consumer.subscribe(List.of(topic), this);
    while (!leaves) {
      for (ConsumerRecord<byte[], byte[]> record : poll()) {
        out.println("read " + record.partition() + " " + record.offset() + " " + new String(record.value()));
        pending.put(new TopicPartition(topic, record.partition()), new OffsetAndMetadata(record.offset() + 1));
      }
      commit();
    }
    consumer.close();
  }

  public static void main(String[] arguments) throws Exception {
    var settings = new HashMap<String, Object>(Map.of("bootstrap.servers", arguments[0], "group.id", arguments[2], "auto.offset.reset", "earliest", "enable.auto.commit", false,
        "session.timeout.ms", arguments.length > 4 ? 30000 : 6000, "heartbeat.interval.ms", 300, "fetch.max.wait.ms", 100, "retry.backoff.ms", 50));
    settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer." + ASSIGNORS.get(arguments[3]));
    if (arguments.length > 4) settings.put("group.instance.id", arguments[4]);
    var member = new GroupMember(settings);
    var input = new Thread(() -> {
      try {
        new BufferedReader(new InputStreamReader(System.in)).readLine();
      } catch (IOException ended) {}
      member.leaves = true;
    });
    input.setDaemon(true);
    input.start();
    member.run(arguments[1]);
  }
}
