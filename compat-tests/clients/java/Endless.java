import java.util.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A producer that writes numbered records until its standard input ends, idempotent with acks=all, else in order by one
 * request at a time. It prints "NUMBER PARTITION OFFSET" for each acknowledgement, an error's text for each failure, and in
 * the end "sent COUNT". Arguments: BOOTSTRAP TOPIC PARTITIONS RECORDS_A_SECOND ACKS
 */
public class Endless {
  public static void main(String[] arguments) throws Exception {
    int partitions = Integer.parseInt(arguments[2]), rate = Integer.parseInt(arguments[3]);
    boolean all = arguments[4].equals("all");
    var settings = new HashMap<String, Object>(Map.of("bootstrap.servers", arguments[0], "acks", arguments[4], "enable.idempotence", all, "linger.ms", 5,
        "delivery.timeout.ms", 120_000, "request.timeout.ms", 10_000, "max.block.ms", 120_000, "reconnect.backoff.max.ms", 200, "retry.backoff.ms", 50, "buffer.memory", 8_000_000L));
    if (!all) settings.put("max.in.flight.requests.per.connection", 1);
    var out = new java.io.PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), true);
    long begin = System.nanoTime();
    int number = 0;
    try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
      Thread input = new Thread(() -> { try { while (System.in.read() >= 0) {} } catch (java.io.IOException ended) {} });
      input.start();
      for (; input.isAlive(); number++) {
        int sent = number;
        byte[] value = (number + " " + "x".repeat(number % 1500)).getBytes();
        producer.send(new ProducerRecord<>(arguments[1], number % partitions, Integer.toString(number).getBytes(), value),
            (metadata, error) -> out.println(error != null ? "error of " + sent + ": " + error : sent + " " + metadata.partition() + " " + metadata.offset()));
        long ahead = number * 1000L / rate - (System.nanoTime() - begin) / 1_000_000;
        if (ahead > 10) Thread.sleep(ahead);
      }
    }
    out.println("sent " + number);
  }
}
