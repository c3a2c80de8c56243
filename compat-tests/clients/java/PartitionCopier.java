import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

/**
 * Copies one partition of a topic in transactions, aborts some of them, and ends when it fails: exactly once as it was done before KIP-447,
 * with a transactional id for each partition. For Java clients of 0.11 to 3.x.
 * Arguments: BOOTSTRAP INPUT PARTITION OUTPUT GROUP TRANSACTIONAL_ID
 */
public class PartitionCopier {
  public static void main(String[] arguments) {
    var input = new TopicPartition(arguments[1], Integer.parseInt(arguments[2]));
    var reading = Map.<String, Object>of("bootstrap.servers", arguments[0], "group.id", arguments[4], "enable.auto.commit", false, "isolation.level", "read_committed",
        "max.poll.records", 50, "fetch.max.wait.ms", 100, "reconnect.backoff.max.ms", 200);
    var writing = Map.<String, Object>of("bootstrap.servers", arguments[0], "transactional.id", arguments[5], "transaction.timeout.ms", 6000, "max.block.ms", 20_000,
        "reconnect.backoff.max.ms", 200);
    var consumer = new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer());
    var producer = new KafkaProducer<>(writing, new StringSerializer(), new StringSerializer());
    var random = new Random();
    producer.initTransactions();
    consumer.assign(List.of(input));
    while (true) {
      OffsetAndMetadata committed = consumer.committed(input);
      consumer.seek(input, committed == null ? 0 : committed.offset());
      boolean commits = true;
      while (commits) {
        ConsumerRecords<String, String> records = consumer.poll(100);
        if (records.isEmpty()) continue;
        producer.beginTransaction();
        for (ConsumerRecord<String, String> record : records) producer.send(new ProducerRecord<>(arguments[3], record.key(), record.value()));
        commits = random.nextInt(5) > 0;
        if (commits) {
          producer.sendOffsetsToTransaction(Map.of(input, new OffsetAndMetadata(consumer.position(input))), arguments[4]);
          producer.commitTransaction();
        } else {
          producer.flush();
          producer.abortTransaction();
        }
      }
    }
  }
}
