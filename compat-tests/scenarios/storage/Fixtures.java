// scenario: fixtures: each of the 112 partitions that six versions of Kafka wrote is served to new and old clients, record by record, and by ListOffsets
// tier: normal
// limit: 180
// needs: kafka-4.4.0 kafka-0.10.2.2 kafka-0.8.2.2
// against: klamm 2.8.2 4.4.0

import java.io.*;
import java.nio.file.*;
import java.nio.file.attribute.FileTime;
import java.time.Duration;
import java.util.*;
import java.util.regex.*;
import java.util.stream.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Each partition folder of fixtures/ takes the place of a topic's only partition while the broker is stopped; the topic is
 * named after the fixture. What must be seen stands beside the folder in P.expected.jsonl.
 */
public class Fixtures {
  static final Path FIXTURES = Path.of(System.getenv("CLIENTS"), "../../fixtures").normalize(), WORK = Path.of(System.getenv("WORK"));
  static final String AGAINST = System.getenv("AGAINST"), BOOTSTRAP = System.getenv("BOOTSTRAP");
  static final Pattern RECORD = Pattern.compile("(\\{\"offset\":(\\d+),\"timestamp\":(-?\\d+),.*?\"headers\":\\[.*\\]),\"magic\":(\\d),\"codec\":\"(\\w+)\"(?:,\"producer_id\":(-?\\d+).*\"transactional\":(\\w+),\"control\":(.*))?\\}");
  static final BufferedReader ANSWERS = new BufferedReader(new InputStreamReader(System.in));
  static int failures = 0;

  record Expected(String line, long offset, long timestamp, int magic, String codec, String producer, boolean transactional, boolean control) {}

  /** One partition folder, its topic and what must be seen in it; the expected records include the control records. */
  record Fixture(String name, Path folder, String topic, List<Expected> records) {
    TopicPartition partition() { return new TopicPartition(topic, 0); }

    List<String> lines() { return records.stream().filter(r -> !r.control).map(Expected::line).toList(); }

    long first() throws IOException { return segments().min().getAsLong(); }

    long end() throws IOException {
      List<String> batches = Files.readAllLines(FIXTURES.resolve(name + ".batches.jsonl"));
      long after = batches.isEmpty() ? 0 : number(batches.get(batches.size() - 1), "last_offset") + 1;
      return Math.max(after, segments().max().getAsLong()); // the active segment may be empty
    }

    LongStream segments() throws IOException {
      try (Stream<Path> files = Files.list(folder)) {
        return files.map(f -> f.getFileName().toString()).filter(f -> f.endsWith(".log")).mapToLong(f -> Long.parseLong(f.substring(0, 20))).boxed().toList().stream().mapToLong(x -> x);
      }
    }

    /** The first offset of the oldest transaction that is open at the end. */
    long lastStable() throws IOException {
      Map<String, Long> open = new HashMap<>();
      for (Expected r : records) {
        if (r.control) open.remove(r.producer);
        else if (r.transactional) open.putIfAbsent(r.producer, r.offset);
      }
      return open.values().stream().min(Comparator.naturalOrder()).orElse(end());
    }

    boolean holds(String codec) { return records.stream().anyMatch(r -> r.codec.equals(codec)); }
  }

  static long number(String json, String field) {
    Matcher m = Pattern.compile("\"" + field + "\":(-?\\d+)").matcher(json);
    if (!m.find()) throw new IllegalStateException("no " + field + " in " + json);
    return Long.parseLong(m.group(1));
  }

  static Expected expected(String line) {
    Matcher m = RECORD.matcher(line);
    if (!m.matches()) throw new IllegalStateException("cannot read " + line);
    return new Expected(m.group(1) + "}", Long.parseLong(m.group(2)), Long.parseLong(m.group(3)), Integer.parseInt(m.group(4)), m.group(5), m.group(6), "true".equals(m.group(7)), m.group(8) != null && !m.group(8).equals("false"));
  }

  static List<Fixture> fixtures() throws IOException {
    List<Fixture> all = new ArrayList<>();
    try (Stream<Path> files = Files.walk(FIXTURES)) {
      for (Path file : files.filter(f -> f.toString().endsWith(".expected.jsonl")).sorted().toList()) {
        String name = FIXTURES.relativize(file).toString().replace(".expected.jsonl", "");
        Path beside = FIXTURES.resolve(name), folder = Files.exists(beside) ? beside : beside.resolveSibling("data").resolve(beside.getFileName());
        all.add(new Fixture(name, folder, name.replace('/', '.'), Files.readAllLines(file).stream().map(Fixtures::expected).toList()));
      }
    }
    return all;
  }

  static void ask(String request) throws IOException {
    System.out.println("@" + request);
    String answer = ANSWERS.readLine();
    if (!answer.startsWith("ok")) throw new IllegalStateException(answer);
  }

  static void same(String what, Object seen, Object wanted) {
    if (seen.equals(wanted)) return;
    failures++;
    String difference = seen + "\n  wanted " + wanted;
    if (seen instanceof List<?> a && wanted instanceof List<?> b) {
      int i = 0;
      while (i < a.size() && i < b.size() && a.get(i).equals(b.get(i))) i++;
      difference = a.size() + " records, wanted " + b.size() + "; the first that differs is\n  " + (i < a.size() ? a.get(i) : "none") + "\n  wanted " + (i < b.size() ? b.get(i) : "none");
    }
    System.out.println("FAILED " + what + ": " + difference);
  }

  static void create(List<Fixture> all) throws Exception {
    try (Admin admin = Admin.create(Map.of("bootstrap.servers", BOOTSTRAP))) {
      // index.interval.bytes and the sizes of index files as where the fixtures were written
      var settings = Map.of("retention.ms", "-1", "segment.index.bytes", "4096", "index.interval.bytes", "300");
      admin.createTopics(all.stream().map(f -> new NewTopic(f.topic, 1, (short) 1).configs(settings)).toList()).all().get();
    }
  }

  /** Puts the files of a fixture where the broker looks for the topic's partition; the topic's id stays. */
  static void replace(Fixture fixture) throws IOException {
    Path folder = Path.of(System.getenv("BROKER_DIR"), "data", fixture.topic + "-0");
    try (Stream<Path> files = Files.list(folder)) {
      for (Path file : files.toList()) if (!file.endsWith("partition.metadata")) Files.delete(file);
    }
    try (Stream<Path> files = Files.list(fixture.folder)) {
      for (Path file : files.toList()) {
        if (file.endsWith("partition.metadata")) continue;
        Path copy = Files.copy(file, folder.resolve(file.getFileName()));
        // Kafka takes the file's time for the largest timestamp of a segment that has no time index: one before all
        Files.setLastModifiedTime(copy, FileTime.fromMillis(-1000));
      }
    }
  }

  static String base64(byte[] bytes) { return bytes == null ? "null" : "\"" + Base64.getEncoder().encodeToString(bytes) + "\""; }

  static String line(ConsumerRecord<byte[], byte[]> r) {
    StringJoiner headers = new StringJoiner(",", "[", "]");
    for (Header h : r.headers()) headers.add("[\"" + h.key() + "\"," + base64(h.value()) + "]");
    return "{\"offset\":" + r.offset() + ",\"timestamp\":" + r.timestamp() + ",\"timestamp_type\":\"" + r.timestampType() + "\",\"key\":" + base64(r.key()) + ",\"value\":" + base64(r.value()) + ",\"headers\":" + headers + "}";
  }

  /** Everything in the partitions, by the current consumer. */
  static Map<TopicPartition, List<String>> consume(List<Fixture> all, String isolation) {
    List<TopicPartition> partitions = all.stream().map(Fixture::partition).toList();
    Map<TopicPartition, List<String>> read = new HashMap<>();
    var settings = Map.<String, Object>of("bootstrap.servers", BOOTSTRAP, "isolation.level", isolation, "fetch.max.wait.ms", 100, "exclude.internal.topics", false);
    try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
      consumer.assign(partitions);
      consumer.seekToBeginning(partitions);
      Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
      long end = System.currentTimeMillis() + 30_000;
      Set<TopicPartition> open = new HashSet<>(partitions);
      while (System.currentTimeMillis() < end && !open.isEmpty()) {
        for (var r : consumer.poll(Duration.ofMillis(300))) read.computeIfAbsent(new TopicPartition(r.topic(), r.partition()), p -> new ArrayList<>()).add(line(r));
        open.removeIf(p -> consumer.position(p) >= ends.get(p));
      }
      for (TopicPartition p : open) same("reading " + p, "stands at " + consumer.position(p), "reaches " + ends.get(p));
    }
    return read;
  }

  static void newConsumer(List<Fixture> all) throws Exception {
    var read = consume(all, "read_uncommitted");
    for (Fixture f : all) same(f.name, read.getOrDefault(f.partition(), List.of()), asNewSees(f.lines()));
    System.out.println("the current consumer read " + read.values().stream().mapToInt(List::size).sum() + " records");
    var committed = all.stream().filter(f -> Files.exists(FIXTURES.resolve(f.name + ".expected-read-committed.jsonl"))).toList();
    read = consume(committed, "read_committed");
    for (Fixture f : committed) same(f.name + " read_committed", read.getOrDefault(f.partition(), List.of()), asNewSees(Files.readAllLines(FIXTURES.resolve(f.name + ".expected-read-committed.jsonl"))));
    System.out.println("read_committed in " + committed.size() + " partitions: " + read.values().stream().mapToInt(List::size).sum() + " records");
  }

  static void listOffsets(List<Fixture> all) throws Exception {
    try (Admin admin = Admin.create(Map.of("bootstrap.servers", BOOTSTRAP))) {
      list(admin, all, "earliest", OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED, f -> f.first() + " -1");
      list(admin, all, "latest", OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED, f -> f.end() + " -1");
      list(admin, all, "latest read_committed", OffsetSpec.latest(), IsolationLevel.READ_COMMITTED, f -> f.lastStable() + " -1");
      if (!AGAINST.equals("2.8.2")) // KIP-734
        list(admin, all, "max timestamp", OffsetSpec.maxTimestamp(), IsolationLevel.READ_UNCOMMITTED, f -> f.records.stream().filter(r -> r.timestamp >= 0).max(Comparator.comparingLong(Expected::timestamp).thenComparing(Comparator.comparingLong(Expected::offset).reversed())).map(r -> r.offset + " " + r.timestamp).orElse("-1 -1"));
      // below all, among all, one beyond; LogAppendTime and internal topics have other times than the sample's
      for (int step = -1; step <= 20; step++) {
        int at = step;
        Map<Fixture, Long> times = new HashMap<>();
        for (Fixture f : all) {
          long[] sorted = f.records.stream().mapToLong(Expected::timestamp).filter(t -> t >= 0).sorted().toArray();
          times.put(f, sorted.length == 0 ? 1_700_000_000_000L : at < 0 ? 0 : at == 20 ? sorted[sorted.length - 1] + 1 : sorted[at * (sorted.length - 1) / 19]);
        }
        list(admin, all, "by time " + at, null, IsolationLevel.READ_UNCOMMITTED, f -> f.records.stream().filter(r -> r.timestamp >= 0 && r.timestamp >= times.get(f)).findFirst().map(r -> r.offset + " " + r.timestamp).orElse("-1 -1"), times);
      }
    }
  }

  interface Answer { String of(Fixture f) throws IOException; }

  static void list(Admin admin, List<Fixture> all, String what, OffsetSpec spec, IsolationLevel isolation, Answer wanted) throws Exception { list(admin, all, what, spec, isolation, wanted, Map.of()); }

  static void list(Admin admin, List<Fixture> all, String what, OffsetSpec spec, IsolationLevel isolation, Answer wanted, Map<Fixture, Long> times) throws Exception {
    Map<TopicPartition, OffsetSpec> asked = new HashMap<>();
    for (Fixture f : all) asked.put(f.partition(), spec != null ? spec : OffsetSpec.forTimestamp(times.get(f)));
    var answers = admin.listOffsets(asked, new ListOffsetsOptions(isolation)).all().get();
    for (Fixture f : all) {
      var answer = answers.get(f.partition());
      same("ListOffsets " + what + " of " + f.name + (times.isEmpty() ? "" : " at " + times.get(f)), answer.offset() + " " + answer.timestamp(), wanted.of(f));
    }
  }

  /**
   * What an old client sees: no headers before V2, no timestamps before V1, and nothing that zstd compressed. Kafka 2.8
   * answers with a message that is cut off where a segment ends with a control batch, on which the client stops, and what it makes of batches that compaction has emptied the
   * consumer of 0.10.2 reads twice: against it, partitions without them have to do.
   */
  static void oldClient(String version, List<Fixture> all, String program, int magic) throws Exception {
    List<Fixture> readable = all.stream().filter(f -> !f.holds("zstd") && (AGAINST.equals("klamm") || !f.name.startsWith("compacted/") && f.records.stream().noneMatch(Expected::control))).toList();
    Path out = Files.createDirectories(WORK.resolve("read-by-" + version));
    List<String> command = new ArrayList<>(List.of("java", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", Path.of(System.getenv("KAFKA_JARS"), version, "libs") + "/*",
        "-Dlog4j.configuration=file:" + Path.of(System.getenv("KAFKA_JARS"), version, "log4j.properties"), program));
    command.addAll(List.of(BOOTSTRAP.split(":")));
    for (Fixture f : readable) command.add(f.topic + "-0=" + out.resolve(f.topic));
    int code = new ProcessBuilder(command).redirectInput(ProcessBuilder.Redirect.from(new File("/dev/null"))).redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.INHERIT).start().waitFor();
    same(version + " ends with", code, 0);
    int count = 0;
    for (Fixture f : readable) {
      Path file = out.resolve(f.topic);
      List<String> seen = Files.exists(file) ? Files.readAllLines(file) : List.of();
      List<String> wanted = f.lines().stream().map(l -> asOldSees(l, magic)).toList();
      same(f.name + " by " + version, seen.stream().map(l -> l.replaceAll(",\"headers\":.*", "")).toList(), wanted);
      count += seen.size();
    }
    System.out.println("the client of " + version + " read " + count + " records in " + readable.size() + " partitions");
  }

  /** Klamm sends no V0 and V1 to current clients but V2, which knows no records without a kind of timestamp. */
  static List<String> asNewSees(List<String> lines) {
    return AGAINST.equals("klamm") ? lines.stream().map(l -> l.replace("\"NoTimestampType\"", "\"CreateTime\"")).toList() : lines;
  }

  static String asOldSees(String line, int magic) {
    String without = line.replaceAll(",\"headers\":.*", "");
    return magic == 0 ? without.replaceAll("\"timestamp\":-?\\d+,\"timestamp_type\":\"\\w+\"", "\"timestamp\":-1,\"timestamp_type\":\"NoTimestampType\"") : without;
  }

  public static void main(String[] unused) throws Exception {
    List<Fixture> all = fixtures();
    same("partitions", all.size(), 112);
    create(all);
    ask("stop");
    for (Fixture f : all) replace(f);
    ask("start");
    long begin = System.currentTimeMillis();
    newConsumer(all);
    listOffsets(all);
    System.out.println("ok new clients after " + (System.currentTimeMillis() - begin) + " ms");
    if (!AGAINST.equals("4.4.0")) { // which serves no client before 2.1
      oldClient("0.10.2.2", all, System.getenv("CLIENTS") + "/java/ReadOld.java", 1);
      oldClient("0.8.2.2", all, FIXTURES + "/make/ReadV0.java", 0);
    }
    System.out.println(failures == 0 ? "ok all" : failures + " differences");
    System.out.flush();
    Runtime.getRuntime().halt(failures == 0 ? 0 : 1);
  }
}
