import java.time.Duration;
import java.util.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.processor.StateRestoreListener;

/**
 * Counts the words of topic `lines` into topic `counts`, and joins the records of `left` and `right` that have one key and
 * are at most 75 ms apart into `pairs`, both exactly once, until it gets SIGTERM. It prints "restored STORE COUNT" for each
 * store that is rebuilt from its changelog. Arguments: BOOTSTRAP STATE_DIRECTORY
 */
public class StreamsApplication {
  static final Duration APART = Duration.ofMillis(75), LATE = Duration.ofDays(1);

  static Topology topology() {
    var builder = new StreamsBuilder();
    builder.<String, String>stream("lines")
        .flatMapValues(line -> List.of(line.split(" ")))
        .groupBy((key, word) -> word)
        .count(Materialized.as("words"))
        .toStream()
        .mapValues(count -> count.toString())
        .to("counts");
    builder.<String, String>stream("left")
        .join(builder.<String, String>stream("right"), (left, right) -> left + " " + right,
            JoinWindows.ofTimeDifferenceAndGrace(APART, LATE), StreamJoined.as("join"))
        .to("pairs");
    return builder.build();
  }

  public static void main(String[] arguments) {
    var settings = new Properties();
    settings.putAll(Map.of("application.id", "application", "bootstrap.servers", arguments[0], "state.dir", arguments[1],
        "default.key.serde", Serdes.StringSerde.class, "default.value.serde", Serdes.StringSerde.class,
        "processing.guarantee", "exactly_once_v2", "commit.interval.ms", 100, "num.stream.threads", 2, "statestore.cache.max.bytes", 0));
    settings.putAll(Map.of("session.timeout.ms", 6000, "heartbeat.interval.ms", 500, "transaction.timeout.ms", 6000, "auto.offset.reset", "earliest",
        "reconnect.backoff.max.ms", 200, "metadata.max.age.ms", 3000));
    var streams = new KafkaStreams(topology(), settings);
    streams.setUncaughtExceptionHandler(error -> {
      error.printStackTrace();
      return StreamThreadExceptionResponse.REPLACE_THREAD;
    });
    streams.setGlobalStateRestoreListener(new StateRestoreListener() {
      @Override public void onRestoreStart(TopicPartition partition, String store, long from, long to) {}
      @Override public void onBatchRestored(TopicPartition partition, String store, long at, long count) {}
      @Override public void onRestoreEnd(TopicPartition partition, String store, long count) { System.out.println("restored " + store + " " + count); }
    });
    Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
    streams.start();
  }
}
