import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.*;
import java.util.stream.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.*;

/**
 * Asks a cluster what an admin console asks, through Kafka's own admin client, and prints every field of the answers.
 *
 * Its argument is the cluster's address. Each line of standard input is the name of a call; its answer is lines that end
 * with an empty one. Kafka's objects are printed by their public accessors, so that a field which a later client adds is
 * printed too. What cannot be the same twice is left out: the assignment of Kafka's own topics, how large the disk is, who
 * coordinates what, and the words of documentation.
 */
public class AdminConsole {
  static final String TOPIC = "work";
  static final long BEGIN_MS = 1700000000000L;
  static String bootstrap;
  static Admin admin;
  static final List<AutoCloseable> open = new ArrayList<>();
  static final Map<String, Callable<Object>> calls = new LinkedHashMap<>();

  public static void main(String[] arguments) throws Exception {
    bootstrap = arguments[0];
    admin = Admin.create(settings("request.timeout.ms", "8000", "default.api.timeout.ms", "10000"));
    reads();
    refusals();
    changes();
    for (Scanner lines = new Scanner(System.in); lines.hasNextLine(); ) {
      Callable<Object> call = calls.get(lines.nextLine());
      print(call == null ? "no such call" : outcome(call), "");
      System.out.println();
      System.out.flush();
    }
    Runtime.getRuntime().halt(0);
  }

  static Map<String, Object> settings(String... more) {
    Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "enable.metrics.push", "false"));
    for (int i = 0; i < more.length; i += 2) settings.put(more[i], more[i + 1]);
    return settings;
  }

  static TopicPartition at(int partition) { return new TopicPartition(TOPIC, partition); }
  static List<TopicPartition> all() { return List.of(at(0), at(1), at(2)); }
  static <K, V> Map<K, V> each(Collection<K> keys, V value) { return keys.stream().collect(Collectors.toMap(k -> k, k -> value)); }
  static ConfigResource resource(ConfigResource.Type type, String name) { return new ConfigResource(type, name); }
  static AlterConfigOp set(String name, String value) { return new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET); }
  static KafkaFuture<Void> altered(ConfigResource resource, AlterConfigOp... changes) { return admin.incrementalAlterConfigs(Map.of(resource, List.of(changes))).all(); }
  static boolean isInternal(String topic) { return topic.startsWith("__"); }

  /** What a console shows. */
  static void reads() {
    calls.put("cluster", () -> {
      var result = admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true).includeFencedBrokers(true));
      boolean known = result.nodes().get().stream().anyMatch(node -> node.id() == get(result.controller()).id());
      return fields("nodes", result.nodes(), "controller", known ? "one of them" : "none of them", "clusterId", id(get(result.clusterId())), "authorizedOperations", result.authorizedOperations());
    });
    calls.put("topics", () -> admin.listTopics(new ListTopicsOptions().listInternal(true)).listings());
    calls.put("topic descriptions", () -> admin.describeTopics(List.of(TOPIC, "compacted", "none"), new DescribeTopicsOptions().includeAuthorizedOperations(true)).topicNameValues());
    calls.put("topic configs", () -> configs(ConfigResource.Type.TOPIC, TOPIC));
    calls.put("configs of an unknown topic", () -> configs(ConfigResource.Type.TOPIC, "none"));
    calls.put("sizes", AdminConsole::sizes);
    calls.put("replica log directories", () -> {
      var replicas = IntStream.rangeClosed(1, 3).mapToObj(node -> new TopicPartitionReplica(TOPIC, 0, node)).collect(Collectors.toList());
      return admin.describeReplicaLogDirs(replicas).values();
    });
    calls.put("offsets", () -> {
      Map<String, Object> found = new LinkedHashMap<>();
      found.put("earliest", admin.listOffsets(each(all(), OffsetSpec.earliest())).all());
      found.put("latest", admin.listOffsets(each(all(), OffsetSpec.latest())).all());
      found.put("latest, committed", admin.listOffsets(each(all(), OffsetSpec.latest()), new ListOffsetsOptions(IsolationLevel.READ_COMMITTED)).all());
      found.put("of the largest time", admin.listOffsets(each(all(), OffsetSpec.maxTimestamp())).all());
      found.put("at a time", admin.listOffsets(each(all(), OffsetSpec.forTimestamp(BEGIN_MS + 4))).all());
      found.put("after all times", admin.listOffsets(each(all(), OffsetSpec.forTimestamp(BEGIN_MS * 2))).all());
      found.put("earliest, local", admin.listOffsets(each(all(), OffsetSpec.earliestLocal())).all());
      found.put("of an unknown topic", admin.listOffsets(Map.of(new TopicPartition("none", 0), OffsetSpec.latest()), new ListOffsetsOptions(IsolationLevel.READ_UNCOMMITTED)).partitionResult(new TopicPartition("none", 0)));
      return found;
    });
    calls.put("groups", () -> admin.listGroups().all());
    calls.put("groups that are empty", () -> admin.listGroups(new ListGroupsOptions().inGroupStates(Set.of(GroupState.EMPTY))).all());
    calls.put("groups of the newer protocol", () -> admin.listGroups(ListGroupsOptions.forConsumerGroups().withTypes(Set.of(GroupType.CONSUMER))).all());
    calls.put("group descriptions", () -> admin.describeConsumerGroups(List.of("team", "left", "none"), new DescribeConsumerGroupsOptions().includeAuthorizedOperations(true)).describedGroups());
    calls.put("classic group descriptions", () -> admin.describeClassicGroups(List.of("team", "left", "none")).describedGroups());
    calls.put("group offsets", () -> {
      Map<String, Object> found = new TreeMap<>();
      for (String group : List.of("team", "left", "none")) found.put(group, admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
      found.put("of one partition", admin.listConsumerGroupOffsets(Map.of("team", new ListConsumerGroupOffsetsSpec().topicPartitions(List.of(at(0), at(2))))).all());
      return found;
    });
    calls.put("lag", () -> {
      var ends = admin.listOffsets(each(all(), OffsetSpec.latest())).all().get();
      var offsets = admin.listConsumerGroupOffsets("team").partitionsToOffsetAndMetadata().get();
      return ends.keySet().stream().collect(Collectors.toMap(p -> p, p -> offsets.containsKey(p) ? ends.get(p).offset() - offsets.get(p).offset() : "none"));
    });
    calls.put("configs of a group", () -> configs(ConfigResource.Type.GROUP, "modern"));
    calls.put("config resources", () -> admin.listConfigResources().all());
    calls.put("client metrics", () -> configs(ConfigResource.Type.CLIENT_METRICS, "latency"));
    calls.put("broker configs that were set", () -> {
      Map<String, Object> found = new TreeMap<>();
      for (String name : List.of("1", "2", "")) {
        var broker = resource(ConfigResource.Type.BROKER, name);
        found.put(name.isEmpty() ? "default" : name, admin.describeConfigs(List.of(broker), new DescribeConfigsOptions().includeSynonyms(true)).values().get(broker).get().entries().stream().filter(entry -> entry.source().name().startsWith("DYNAMIC")).collect(Collectors.toSet()));
      }
      return found;
    });
    calls.put("quotas", () -> admin.describeClientQuotas(ClientQuotaFilter.all()).entities());
    calls.put("quotas of a user", () -> admin.describeClientQuotas(ClientQuotaFilter.contains(List.of(ClientQuotaFilterComponent.ofEntity("user", "u")))).entities());
    calls.put("quotas of clients alone", () -> admin.describeClientQuotas(ClientQuotaFilter.containsOnly(List.of(ClientQuotaFilterComponent.ofEntityType("client-id")))).entities());
    calls.put("scram users", () -> admin.describeUserScramCredentials().all());
    calls.put("a scram user that is unknown", () -> admin.describeUserScramCredentials(List.of("nobody")).description("nobody"));
    calls.put("features", () -> admin.describeFeatures().featureMetadata());
    calls.put("quorum", () -> {
      QuorumInfo quorum = admin.describeMetadataQuorum().quorumInfo().get();
      boolean known = quorum.voters().stream().anyMatch(voter -> voter.replicaId() == quorum.leaderId());
      Function<QuorumInfo.ReplicaState, Object> state = voter -> fields("replicaId", voter.replicaId(), "behind", quorum.highWatermark() - voter.logEndOffset() > 1000 ? "far" : "little", "lastFetchTimestamp", voter.lastFetchTimestamp().isPresent(), "lastCaughtUpTimestamp", voter.lastCaughtUpTimestamp().isPresent());
      return fields("leaderId", known ? "a voter" : "no voter", "voters", quorum.voters().stream().map(state).collect(Collectors.toSet()), "observers", quorum.observers().stream().map(state).collect(Collectors.toSet()), "nodes", quorum.nodes());
    });
    calls.put("transactions", () -> admin.listTransactions().all());
    calls.put("transactions by state", () -> admin.listTransactions(new ListTransactionsOptions().filterStates(Set.of(TransactionState.PREPARE_ABORT, TransactionState.EMPTY))).all());
    calls.put("transactions that are old", () -> admin.listTransactions(new ListTransactionsOptions().filterOnDuration(3_600_000)).all());
    calls.put("transaction descriptions", () -> {
      var result = admin.describeTransactions(List.of("transfer", "none"));
      return fields("transfer", result.description("transfer"), "none", result.description("none"));
    });
    calls.put("producers", () -> admin.describeProducers(all()).all());
    calls.put("reassignments", () -> admin.listPartitionReassignments().reassignments());
    calls.put("acls", () -> admin.describeAcls(AclBindingFilter.ANY).values());
    calls.put("delegation tokens", () -> admin.describeDelegationToken().delegationTokens());
  }

  /** What a person does wrong there. */
  static void refusals() {
    calls.put("create an acl", () -> admin.createAcls(List.of(new AclBinding(new org.apache.kafka.common.resource.ResourcePattern(org.apache.kafka.common.resource.ResourceType.TOPIC, TOPIC, org.apache.kafka.common.resource.PatternType.LITERAL), new AccessControlEntry("User:u", "*", AclOperation.READ, AclPermissionType.ALLOW)))).all());
    calls.put("create what is there, and what cannot be", () -> admin.createTopics(List.of(new NewTopic(TOPIC, 1, (short) 1), new NewTopic("many", 1, (short) 4), new NewTopic("a b", 1, (short) 1), new NewTopic("none of it", 0, (short) 1), new NewTopic("bad", 1, (short) 1).configs(Map.of("retention.ms", "long")))).values());
    calls.put("would create", () -> {
      var result = admin.createTopics(List.of(new NewTopic("new", 2, (short) 3).configs(Map.of("retention.ms", "5000"))), new CreateTopicsOptions().validateOnly(true));
      return fields("new", result.values(), "partitions", result.numPartitions("new"), "replication", result.replicationFactor("new"));
    });
    calls.put("fewer partitions", () -> admin.createPartitions(Map.of(TOPIC, NewPartitions.increaseTo(2), "none", NewPartitions.increaseTo(2))).values());
    calls.put("a config that is none", () -> altered(resource(ConfigResource.Type.TOPIC, TOPIC), set("no.such.key", "1")));
    calls.put("a config of a broker that is none", () -> altered(resource(ConfigResource.Type.BROKER, "9"), set("log.cleaner.threads", "2")));
    calls.put("delete records beyond the end", () -> admin.deleteRecords(Map.of(at(0), RecordsToDelete.beforeOffset(1000))).lowWatermarks());
    calls.put("delete a topic that is none", () -> admin.deleteTopics(List.of("none")).topicNameValues());
    calls.put("delete groups", () -> admin.deleteConsumerGroups(List.of("team", "none")).deletedGroups());
    calls.put("set offsets of a group that is in use", () -> admin.alterConsumerGroupOffsets("team", Map.of(at(0), new OffsetAndMetadata(0))).all());
    calls.put("delete offsets of a group that is in use", () -> admin.deleteConsumerGroupOffsets("team", Set.of(at(0))).partitionResult(at(0)));
    calls.put("remove a member that is none", () -> admin.removeMembersFromConsumerGroup("team", new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("nobody")))).memberResult(new MemberToRemove("nobody")));
    calls.put("elect who leads already", () -> admin.electLeaders(ElectionType.PREFERRED, Set.of(at(0), new TopicPartition("none", 0))).partitions());
    calls.put("reassign to a broker that is none", () -> admin.alterPartitionReassignments(Map.of(at(0), Optional.of(new NewPartitionReassignment(List.of(9))), at(1), Optional.empty())).values());
    calls.put("a quota that is none", () -> admin.alterClientQuotas(List.of(new ClientQuotaAlteration(new ClientQuotaEntity(Map.of("user", "u")), List.of(new ClientQuotaAlteration.Op("no_such_rate", 1.0))))).values());
    calls.put("a scram user with few iterations", () -> admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion("carol", new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 1), "secret"), new UserScramCredentialDeletion("nobody", ScramMechanism.SCRAM_SHA_512))).values());
    calls.put("both passwords of a user at once", () -> admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion("carol", new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), "secret"), new UserScramCredentialUpsertion("carol", new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), "secret"))).values());
    calls.put("abort a transaction of another producer", () -> admin.abortTransaction(new AbortTransactionSpec(at(0), 4711, (short) 0, 0)).all());
    calls.put("a feature that is none", () -> admin.updateFeatures(Map.of("no.such.feature", new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.UPGRADE))).values());
    calls.put("unregister a broker that is none", () -> admin.unregisterBroker(9).all());
  }

  /** What changes the cluster, from its beginning on. */
  static void changes() {
    calls.put("begin", () -> {
      admin.createTopics(List.of(new NewTopic(TOPIC, Map.of(0, List.of(1, 2, 3), 1, List.of(2, 3, 1), 2, List.of(3, 1, 2))).configs(Map.of("retention.ms", "-1", "min.insync.replicas", "2")), new NewTopic("compacted", Map.of(0, List.of(2, 3))).configs(Map.of("cleanup.policy", "compact")))).all().get();
      try (var producer = producer("acks", "all", "linger.ms", "5000")) {
        for (int n = 0; n < 30; n++) producer.send(record(n % 3, n));
        producer.flush();
      }
      var transaction = producer("transactional.id", "transfer", "transaction.timeout.ms", "600000");
      open.add(transaction);
      transaction.initTransactions();
      transaction.beginTransaction();
      transaction.send(record(2, 30)).get();
      member("team", "classic");
      admin.alterConsumerGroupOffsets("left", Map.of(at(1), new OffsetAndMetadata(7, "by hand"))).all().get();
      return "begun";
    });
    calls.put("set what can be set", () -> {
      altered(resource(ConfigResource.Type.BROKER, "1"), set("log.cleaner.threads", "2")).get();
      altered(resource(ConfigResource.Type.BROKER, ""), set("log.retention.ms", "86400000")).get();
      altered(resource(ConfigResource.Type.CLIENT_METRICS, "latency"), set("interval.ms", "60000"), set("metrics", "org.apache.kafka.producer.")).get();
      altered(resource(ConfigResource.Type.GROUP, "modern"), set("consumer.session.timeout.ms", "46000")).get();
      admin.alterClientQuotas(List.of(quota(Map.of("user", "u"), "producer_byte_rate", 5000.0), quota(Map.of("user", "u", "client-id", "c"), "request_percentage", 50.0), quota(Collections.singletonMap("client-id", null), "consumer_byte_rate", 7000.0), quota(Map.of("ip", "127.0.0.2"), "connection_creation_rate", 10.0))).all().get();
      admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion("alice", new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), "secret"), new UserScramCredentialUpsertion("bob", new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192), "secret"))).all().get();
      admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion("alice", new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192), "secret"))).all().get();
      return "set";
    });
    calls.put("delete records", () -> admin.deleteRecords(Map.of(at(0), RecordsToDelete.beforeOffset(4))).lowWatermarks());
    calls.put("end the transaction by force", () -> admin.forceTerminateTransaction("transfer").result());
    calls.put("delete a group", () -> admin.deleteConsumerGroups(List.of("left")).deletedGroups());
    calls.put("delete a topic", () -> admin.deleteTopics(List.of("compacted")).topicNameValues());
    calls.put("more partitions", () -> admin.createPartitions(Map.of(TOPIC, NewPartitions.increaseTo(4, List.of(List.of(2, 1, 3))))).values());
    calls.put("wait until all know", () -> {
      Thread.sleep(2000);
      return "waited";
    });
    calls.put("a group of the newer protocol begins", () -> {
      member("modern", "consumer");
      return "begun";
    });
    calls.put("its description", () -> admin.describeConsumerGroups(List.of("modern")).describedGroups());
    calls.put("its offsets", () -> admin.listConsumerGroupOffsets("modern").partitionsToOffsetAndMetadata());
    calls.put("delete it while it lives", () -> admin.deleteConsumerGroups(List.of("modern")).deletedGroups());
    calls.put("wait for two in sync", () -> eventually(() -> get(admin.describeTopics(List.of(TOPIC)).allTopicNames()).get(TOPIC).partitions().stream().allMatch(p -> p.isr().size() == 2 && p.leader() != null)));
    calls.put("wait for three in sync", () -> eventually(() -> get(admin.describeTopics(List.of(TOPIC)).allTopicNames()).get(TOPIC).partitions().stream().allMatch(p -> p.isr().size() == 3)));
  }

  static ClientQuotaAlteration quota(Map<String, String> entity, String name, double value) { return new ClientQuotaAlteration(new ClientQuotaEntity(entity), List.of(new ClientQuotaAlteration.Op(name, value))); }
  static byte[] bytes(String text) { return text.getBytes(StandardCharsets.UTF_8); }
  static ProducerRecord<byte[], byte[]> record(int partition, int n) { return new ProducerRecord<>(TOPIC, partition, BEGIN_MS + n, bytes("k" + n), bytes("v" + n)); }

  static Producer<byte[], byte[]> producer(String... more) {
    var serializer = new org.apache.kafka.common.serialization.ByteArraySerializer();
    return new KafkaProducer<>(settings(more), serializer, serializer);
  }

  /** A member of its own group that has every partition, has committed two of them, and lives. */
  static void member(String group, String protocol) {
    var deserializer = new org.apache.kafka.common.serialization.ByteArrayDeserializer();
    var consumer = new KafkaConsumer<>(settings("group.id", group, "client.id", "client-of-" + group, "group.protocol", protocol, "enable.auto.commit", "false", "auto.offset.reset", "earliest"), deserializer, deserializer);
    open.add(consumer);
    consumer.subscribe(List.of(TOPIC));
    while (consumer.assignment().isEmpty()) consumer.poll(Duration.ofMillis(100));
    consumer.commitSync(Map.of(at(0), new OffsetAndMetadata(5, "half"), at(1), new OffsetAndMetadata(10)));
  }

  static Object eventually(BooleanSupplier condition) throws Exception {
    for (long end = System.currentTimeMillis() + 40_000; System.currentTimeMillis() < end; Thread.sleep(100)) if (condition.getAsBoolean()) return "so it is";
    return "it is not so";
  }

  static Object configs(ConfigResource.Type type, String name) throws Exception {
    var resource = resource(type, name);
    return admin.describeConfigs(List.of(resource), new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true)).values().get(resource).get().entries();
  }

  /** Each node's replicas of the topics that are not Kafka's own. */
  static Object sizes() throws Exception {
    Map<String, Object> found = new TreeMap<>();
    for (var node : admin.describeLogDirs(List.of(1, 2, 3)).descriptions().entrySet()) {
      Object of = outcome(() -> {
        Map<String, Object> directories = new TreeMap<>();
        node.getValue().get().forEach((path, directory) -> {
          boolean plausible = directory.usableBytes().orElse(-1) > 0 && directory.usableBytes().getAsLong() <= directory.totalBytes().orElse(-1);
          var replicas = directory.replicaInfos().entrySet().stream().filter(entry -> !isInternal(entry.getKey().topic())).collect(Collectors.toMap(Map.Entry::getKey, Map.Entry::getValue));
          directories.put(path, fields("error", String.valueOf(directory.error()), "disk", plausible ? "has space" : "is odd", "replicas", replicas));
        });
        return directories;
      });
      found.put("node " + node.getKey(), of);
    }
    return found;
  }

  static Map<String, Object> fields(Object... pairs) {
    Map<String, Object> map = new TreeMap<>();
    for (int i = 0; i < pairs.length; i += 2) map.put((String) pairs[i], plain(pairs[i + 1]));
    return map;
  }

  static Object id(Object text) { return String.valueOf(text).matches("[A-Za-z0-9_-]{22}") ? "ID" : text; }

  static <T> T get(KafkaFuture<T> future) {
    try { return future.get(); } catch (Exception e) { throw new CompletionException(e); }
  }

  static Object outcome(Callable<?> call) {
    try { return plain(call.call()); } catch (Exception e) { return plain(e); }
  }

  /** Maps, lists and text in place of anything. */
  static Object plain(Object value) {
    if (value == null) return "null";
    if (value instanceof KafkaFuture<?> future) return outcome(future::get);
    if (value instanceof Throwable t) {
      while ((t instanceof ExecutionException || t instanceof CompletionException) && t.getCause() != null) t = t.getCause();
      return "! " + t.getClass().getSimpleName() + ": " + t.getMessage();
    }
    if (value instanceof Optional<?> o) return o.isPresent() ? plain(o.get()) : "none";
    if (value instanceof OptionalLong o) return o.isPresent() ? o.getAsLong() + "" : "none";
    if (value instanceof OptionalInt o) return o.isPresent() ? o.getAsInt() + "" : "none";
    if (value instanceof Node node) return node.id() + " at " + node.host() + ":" + node.port() + (node.hasRack() ? " in " + node.rack() : "") + (node.isFenced() ? " fenced" : "");
    if (value instanceof ConfigEntry.ConfigSynonym synonym) return synonym.source() + ":" + synonym.name() + "=" + synonym.value();
    if (value instanceof Map<?, ?> map) {
      Map<String, Object> sorted = new TreeMap<>();
      map.forEach((key, item) -> sorted.put(text(plain(key)), plain(item)));
      return sorted;
    }
    if (value instanceof Collection<?> collection) {
      boolean ordered = collection.stream().anyMatch(item -> item instanceof Node || item instanceof ConfigEntry.ConfigSynonym) && value instanceof List;
      Stream<Object> items = collection.stream().map(AdminConsole::plain);
      return (ordered ? items : items.sorted(Comparator.comparing(AdminConsole::text))).collect(Collectors.toList());
    }
    if (value instanceof Uuid uuid) return uuid.equals(Uuid.ZERO_UUID) ? "no ID" : "ID";
    if (value instanceof RaftVoterEndpoint endpoint) return endpoint.listener() + "://" + endpoint.host() + ":" + endpoint.port();
    boolean whole = value instanceof Enum || value instanceof TopicPartition || value instanceof TopicPartitionReplica || value instanceof ConfigResource || value instanceof ClientQuotaEntity;
    return whole || !value.getClass().getName().startsWith("org.apache.kafka.") ? String.valueOf(value) : accessed(value);
  }

  /** What the public accessors of one of Kafka's objects return. */
  static Object accessed(Object value) {
    Map<String, Object> found = new TreeMap<>();
    for (Method method : value.getClass().getMethods()) {
      boolean accessor = method.getParameterCount() == 0 && !Modifier.isStatic(method.getModifiers()) && method.getReturnType() != void.class && method.getDeclaringClass() != Object.class && !method.isAnnotationPresent(Deprecated.class);
      if (!accessor || Set.of("toString", "hashCode").contains(method.getName())) continue;
      method.setAccessible(true);
      Object item = outcome(() -> method.invoke(value));
      found.put(method.getName(), switch (method.getName()) {
        case "documentation" -> String.valueOf(item).length() > 10 ? "given" : item;
        case "coordinator", "coordinatorId" -> "a node";
        case "consumerId" -> id(item);
        default -> item;
      });
    }
    return found;
  }

  static String text(Object plain) {
    if (plain instanceof Map<?, ?> map) return map.entrySet().stream().map(entry -> entry.getKey() + "=" + text(entry.getValue())).collect(Collectors.joining(", ", "{", "}"));
    if (plain instanceof List<?> list) return list.stream().map(AdminConsole::text).collect(Collectors.joining(", ", "[", "]"));
    return String.valueOf(plain).replace("\n", " ");
  }

  /** How many things are within one another. */
  static int height(Object plain) {
    Collection<?> items = plain instanceof Map<?, ?> map ? map.values() : plain instanceof List<?> list ? list : List.of();
    return items.stream().mapToInt(item -> 1 + height(item)).max().orElse(0);
  }

  /** What is small on one line, else each part on its own. */
  static void print(Object plain, String indent) {
    if (height(plain) <= (indent.isEmpty() ? 0 : 2) || text(plain).equals("[]")) {
      System.out.println(indent + text(plain));
    } else if (plain instanceof Map<?, ?> map) {
      map.forEach((key, item) -> {
        if (height(item) <= 2) {
          System.out.println(indent + key + ": " + text(item));
        } else {
          System.out.println(indent + key + ":");
          print(item, indent + " ");
        }
      });
    } else {
      for (Object item : (List<?>) plain) {
        boolean small = height(item) <= 2;
        System.out.println(indent + "-" + (small ? " " + text(item) : ""));
        if (!small) print(item, indent + " ");
      }
    }
  }
}
