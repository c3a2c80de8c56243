import java.io.PrintStream;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;

/** Reads whole partitions with the consumer of 0.10, which knows timestamps but no headers. Arguments: HOST PORT TOPIC-PARTITION=FILE… */
public class ReadOld {
  static String base64(byte[] bytes) { return bytes == null ? "null" : "\"" + Base64.getEncoder().encodeToString(bytes) + "\""; }

  public static void main(String[] arguments) throws Exception {
    Map<TopicPartition, PrintStream> files = new HashMap<>();
    for (int n = 2; n < arguments.length; n++) {
      String name = arguments[n].split("=")[0];
      int dash = name.lastIndexOf('-');
      files.put(new TopicPartition(name.substring(0, dash), Integer.parseInt(name.substring(dash + 1))), new PrintStream(arguments[n].split("=")[1], "UTF-8"));
    }
    Properties config = new Properties();
    config.put("bootstrap.servers", arguments[0] + ":" + arguments[1]);
    config.put("enable.auto.commit", "false");
    config.put("fetch.max.wait.ms", "100");
    config.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
    config.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
    try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config)) {
      consumer.assign(files.keySet());
      consumer.seekToBeginning(files.keySet());
      Set<TopicPartition> open = new HashSet<>(files.keySet());
      // it does not step over control records, which are hidden from it: a partition is read when nothing more comes
      for (int silent = 0; silent < 5; silent++)
        for (ConsumerRecord<byte[], byte[]> one : consumer.poll(200)) {
          silent = -1;
          files.get(new TopicPartition(one.topic(), one.partition())).println("{\"offset\":" + one.offset() + ",\"timestamp\":" + one.timestamp() + ",\"timestamp_type\":\"" + one.timestampType()
              + "\",\"key\":" + base64(one.key()) + ",\"value\":" + base64(one.value()) + ",\"headers\":[]}");
        }
    }
    for (PrintStream file : files.values()) file.close();
  }
}
