//! What a person writes, and what the broker makes of it or answers.

use super::*;

/// A file named `f`, environment variables and overrides, each as lines of `key=value`.
fn load_lines(
    file: Option<&str>,
    environment: &str,
    overrides: &str,
) -> Result<(BrokerConfig, Vec<Warning>), Vec<ConfigError>> {
    let pairs = |lines: &str| {
        lines
            .lines()
            .filter_map(|line| line.trim().split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    };
    load(&Sources {
        file: file.map(|text| (PathBuf::from("f"), text.to_owned())),
        environment: pairs(environment),
        overrides: pairs(overrides),
    })
}

/// The config of a file that must be read without a warning.
fn file(text: &str) -> BrokerConfig {
    let (config, warnings) = load_lines(Some(text), "", "").unwrap();
    assert_eq!(warnings, []);
    config
}

/// The mistakes in a file, one a line.
fn mistakes(text: &str) -> String {
    let errors = load_lines(Some(text), "", "").expect_err(text);
    errors.iter().map(ConfigError::to_string).collect::<Vec<_>>().join("\n")
}

fn warnings(text: &str) -> String {
    let (_, warnings) = load_lines(Some(text), "", "").unwrap();
    warnings.iter().map(Warning::to_string).collect::<Vec<_>>().join("\n")
}

fn listeners(config: &BrokerConfig) -> String {
    config.listeners.iter().map(Listener::to_string).collect::<Vec<_>>().join(" ")
}

fn advertised(config: &BrokerConfig) -> String {
    let all = config.advertised_listeners.iter();
    all.map(|it| format!("{}://{}:{}", it.name, it.host, it.port)).collect::<Vec<_>>().join(" ")
}

/// Without any file a broker starts for this machine alone, and its internal topics can be made by one node.
#[test]
fn nobody_has_to_set_anything() {
    let config = BrokerConfig::defaults();
    assert_eq!(config.node_id, NodeId(1));
    assert_eq!(listeners(&config), "PLAINTEXT://127.0.0.1:9092 PLAINTEXT://[::1]:9092");
    assert_eq!(config.listeners.iter().map(|it| it.is_optional).collect::<Vec<_>>(), [false, true]);
    assert_eq!(config.advertised_listeners, []);
    assert_eq!(config.inter_broker_listener_name, "PLAINTEXT");
    assert_eq!(config.log_dirs, [PathBuf::from("./klamm-data")]);
    assert_eq!((config.num_partitions, config.default_replication_factor), (1, 1));
    assert_eq!((config.offsets_topic_replication_factor, config.offsets_topic_num_partitions), (1, 50));
    assert_eq!(
        (config.transaction_state_log_replication_factor, config.transaction_state_log_min_isr),
        (1, 1)
    );
    assert_eq!(config.group_initial_rebalance_delay_ms, 3000);
    assert!(config.auto_create_topics_enable);
    assert_eq!(config.cluster_id, None);
}

/// A file for Apache Kafka that relies on its default of `listeners` is reached from everywhere; it must be here.
#[test]
fn a_file_without_listeners_listens_on_all_interfaces() {
    let config = file("num.partitions=3\n");
    assert_eq!(listeners(&config), "PLAINTEXT://:9092");
    assert!(config.listeners[0].is_wildcard());
    assert!(!config.listeners[0].is_optional);
}

#[test]
fn the_command_line_wins_over_the_environment_and_that_over_the_file() {
    let text = "num.partitions=1\nmax.connections=1\ngroup.max.size=1\n";
    let environment = "KAFKA_MAX_CONNECTIONS=2\nKAFKA_GROUP_MAX_SIZE=2";
    let (config, _) = load_lines(Some(text), environment, "group.max.size=3").unwrap();
    assert_eq!((config.num_partitions, config.max_connections, config.group_max_size), (1, 2, 3));
    assert_eq!(config.values["group.max.size"], ("3".to_owned(), Source::Override));
    assert_eq!(config.values["max.connections"].1, Source::Variable("KAFKA_MAX_CONNECTIONS".to_owned()));
}

#[test]
fn every_mistake_is_told_with_its_place_what_was_found_and_what_is_allowed() {
    let text = "num.partitions = 0\nbad=\\u1\nlog.dirs=a,,b\nauto.create.topics.enable=yes\n";
    let errors = load_lines(Some(text), "KAFKA_NODE_ID=first", "group.max.size=0").unwrap_err();
    let told: Vec<String> = errors.iter().map(ConfigError::to_string).collect();
    assert_eq!(
        told,
        [
            "f:2: \\u must be followed by four hexadecimal digits; a plain backslash is written \\\\",
            "f:4: auto.create.topics.enable=yes: expected true or false",
            "command line: group.max.size=0: expected a whole number from 1 to 2147483647",
            "f:3: log.dirs=a,,b: expected one or more directories with commas between them",
            "environment variable KAFKA_NODE_ID: node.id=first: expected a whole number from 0 to 2147483647",
            "f:1: num.partitions=0: expected a whole number from 1 to 2147483647",
        ]
    );
}

#[test]
fn a_password_is_never_repeated() {
    let secret = "delegation.token.secret.key";
    let mut loading = Loading::default();
    loading.settings.insert(secret.to_owned(), ("hunter2".to_owned(), Source::Override));
    loading.error(secret, "is wrong");
    assert_eq!(loading.errors[0].to_string(), format!("command line: {secret}: is wrong"));
}

#[test]
fn an_unknown_key_warns_and_names_the_one_that_was_meant() {
    assert_eq!(
        warnings("num.partitons=3\nretention.ms=5\nsuper.duper=1\n"),
        "f:1: num.partitons is no setting that Klamm knows; did you mean num.partitions?\n\
         f:2: retention.ms is no setting that Klamm knows; did you mean log.retention.ms?\n\
         f:3: super.duper is no setting that Klamm knows; it has no effect"
    );
    let (_, found) = load_lines(None, "KAFKA_ADVERTISED_LISTENER=x", "").unwrap();
    assert!(found[0].message.ends_with("did you mean KAFKA_ADVERTISED_LISTENERS?"), "{found:?}");
}

#[test]
fn a_key_that_stands_twice_warns_and_the_later_counts() {
    let text = "num.partitions=1\nnum.partitions=2\n";
    assert_eq!(warnings(text), "f:2: num.partitions stands on line 1 too; this later line counts");
    assert_eq!(load_lines(Some(text), "", "").unwrap().0.num_partitions, 2);
}

#[test]
fn what_has_no_effect_is_told_once_but_not_if_it_is_the_default() {
    assert_eq!(
        warnings("background.threads=7\nnum.network.threads=3\nsecurity.providers=\nnum.io.threads=16\n"),
        "known to Kafka and without effect in this version of Klamm: background.threads, num.io.threads"
    );
}

/// The tutorials' line: a broker id, ZooKeeper, what to advertise and where to listen, and a JVM's options.
#[test]
fn the_variables_of_the_tutorials_work() {
    let environment = "KAFKA_BROKER_ID=0\nKAFKA_ZOOKEEPER_CONNECT=192.168.1.2:2181\n\
        KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://192.168.1.2:9092\nKAFKA_LISTENERS=PLAINTEXT://0.0.0.0:9092\n\
        KAFKA_HEAP_OPTS=-Xmx1G\nKAFKA_LOG4J_ROOT_LOGLEVEL=DEBUG\nCLUSTER_ID=MkU3OEVBNTcwNTJENDM2Qk";
    let (config, warnings) = load_lines(Some("log.dirs=/data\n"), environment, "").unwrap();
    assert_eq!(config.node_id, NodeId(0));
    assert_eq!(listeners(&config), "PLAINTEXT://0.0.0.0:9092");
    assert_eq!(advertised(&config), "PLAINTEXT://192.168.1.2:9092");
    assert_eq!(config.cluster_id.as_deref(), Some("MkU3OEVBNTcwNTJENDM2Qk"));
    assert_eq!(warnings.len(), 1);
    assert_eq!(
        warnings[0].to_string(),
        "environment variable KAFKA_ZOOKEEPER_CONNECT: zookeeper.connect has no effect: Klamm needs no ZooKeeper, \
         so none has to run"
    );
    let errors = load_lines(None, "CLUSTER_ID=no good", "").unwrap_err();
    assert_eq!(errors[0].source_of_value, Some(Source::Variable("CLUSTER_ID".to_owned())));
}

/// Apache Kafka's own config/server.properties of today, shortened to what it sets.
#[test]
fn a_kraft_file_for_one_node_works() {
    let text = "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.bootstrap.servers=localhost:9093\n\
        listeners=PLAINTEXT://:9092,CONTROLLER://:9093\ninter.broker.listener.name=PLAINTEXT\n\
        advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093\n\
        controller.listener.names=CONTROLLER\nlistener.security.protocol.map=CONTROLLER:PLAINTEXT,\
        PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL\n\
        log.dirs=/tmp/kraft-combined-logs\noffsets.topic.replication.factor=1\nlog.retention.hours=168\n";
    let config = file(text);
    assert_eq!(listeners(&config), "PLAINTEXT://:9092 CONTROLLER://:9093");
    assert_eq!(config.listeners.iter().map(|it| it.is_controller).collect::<Vec<_>>(), [false, true]);
    assert_eq!(config.client_listeners().count(), 1);
    assert_eq!(advertised(&config), "PLAINTEXT://localhost:9092");
    assert_eq!(config.controller_listener_names, ["CONTROLLER"]);
    // Without a map, controllers' listeners are plaintext.
    let config = file(
        "listeners=A://:1,PLAINTEXT://:2\ncontroller.listener.names=A\n\
        controller.quorum.voters=1@localhost:1\n",
    );
    assert_eq!(config.listeners[0].security_protocol, SecurityProtocol::Plaintext);
}

#[test]
fn the_keys_of_old_kafkas_mean_what_they_meant() {
    let config = file("broker.id=7\nport=9093\nhost.name=10.0.0.1\nadvertised.host.name=kafka.example.com\n");
    assert_eq!(config.node_id, NodeId(7));
    assert_eq!(listeners(&config), "PLAINTEXT://10.0.0.1:9093");
    assert_eq!(advertised(&config), "PLAINTEXT://kafka.example.com:9093");
    assert_eq!(listeners(&file("port=9093\n")), "PLAINTEXT://:9093");
    assert_eq!(listeners(&file("host.name=::1\n")), "PLAINTEXT://[::1]:9092");
    assert_eq!(advertised(&file("host.name=a\nadvertised.port=1\n")), "PLAINTEXT://a:1");
    // Those of today win.
    assert_eq!(listeners(&file("port=1\nlisteners=PLAINTEXT://:2\n")), "PLAINTEXT://:2");
    assert!(mistakes("advertised.port=1\n").contains("needs advertised.host.name"));
    // Asked to make an id up.
    assert_eq!(file("broker.id=-1\n").node_id, NodeId(1));
    assert!(mistakes("broker.id=-2\n").contains("from 0"));
}

/// The properties file of an Apache Kafka 2.8 comes with its directory, and that one takes segments from 14 bytes on.
#[test]
fn segments_may_be_as_small_as_old_kafkas_took_them() {
    let (config, _) = load_lines(Some("log.segment.bytes=100000"), "", "").unwrap();
    let topic = crate::TopicConfig::effective(&BTreeMap::new(), &crate::DynamicConfigs::default(), &config);
    assert_eq!(topic.segment_bytes, 100_000);
    assert!(warnings("log.segment.bytes=14").contains("log.segment.bytes=14 is taken"));
    assert!(mistakes("log.segment.bytes=13").contains("log.segment.bytes"));
    assert!(mistakes("log.segment.bytes=x").contains("log.segment.bytes"));
}

#[test]
fn two_ids_must_be_one_unless_the_stronger_source_decides() {
    assert!(mistakes("broker.id=1\nnode.id=2\n").contains("must be the same as node.id=2"));
    let (config, _) = load_lines(Some("node.id=2\n"), "KAFKA_BROKER_ID=0", "").unwrap();
    assert_eq!(config.node_id, NodeId(0));
    assert_eq!(config.value("node.id").as_deref(), Some("0"));
    assert_eq!(file("node.id=5\n").value("broker.id").as_deref(), Some("5"));
}

#[test]
fn several_listeners_with_names() {
    let config = file(
        "listeners=internal://10.0.0.1:9093,EXTERNAL://[::]:0\n\
         listener.security.protocol.map=INTERNAL:PLAINTEXT,external:PLAINTEXT\n\
         inter.broker.listener.name=internal\nadvertised.listeners=EXTERNAL://[2001:db8::1]:9092\n",
    );
    assert_eq!(listeners(&config), "INTERNAL://10.0.0.1:9093 EXTERNAL://[::]:0");
    assert!(config.listeners[1].is_wildcard());
    assert_eq!(config.inter_broker_listener_name, "INTERNAL");
    assert_eq!(config.advertised_listeners[0].host, "2001:db8::1");
    assert!(mistakes("listeners=A://:1\n").contains("add A:PLAINTEXT to listener.security.protocol.map"));
    assert!(mistakes("inter.broker.listener.name=B\n").contains("no listener for clients"));
    assert!(mistakes("advertised.listeners=PLAINTEXT://0.0.0.0:1\n").contains("needs a host name"));
    assert!(mistakes("advertised.listeners=PLAINTEXT://:1\n").contains("needs a host name"));
    assert!(
        mistakes("listeners=PLAINTEXT://:1\nadvertised.listeners=B://b:1\n")
            .contains("listeners has PLAINTEXT")
    );
    assert!(mistakes("listeners=\n").contains("at least one listener"));
    assert!(mistakes("listeners=A://:1\ncontroller.listener.names=A\n").contains("for clients"));
    assert!(
        mistakes("inter.broker.listener.name=PLAINTEXT\nsecurity.inter.broker.protocol=PLAINTEXT\n")
            .contains("not both")
    );
}

/// Compose files of other images set advertised.listeners alone, with names of their own.
#[test]
fn listeners_follow_advertised_names_that_the_default_lacks() {
    let environment = "KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://kafka:29092,PLAINTEXT_HOST://localhost:9092\n\
        KAFKA_LISTENER_SECURITY_PROTOCOL_MAP=PLAINTEXT:PLAINTEXT,PLAINTEXT_HOST:PLAINTEXT";
    let (config, _) = load_lines(Some(""), environment, "").unwrap();
    assert_eq!(listeners(&config), "PLAINTEXT://:29092 PLAINTEXT_HOST://:9092");
    // With the default's name, the port inside a container stays 9092 whatever is advertised.
    assert_eq!(listeners(&file("advertised.listeners=PLAINTEXT://a:29092\n")), "PLAINTEXT://:9092");
}

/// Nodes of a cluster with Kafka's own settings.
#[test]
fn a_node_is_broker_or_controller_or_both_of_a_cluster() {
    let quorum =
        "controller.listener.names=CONTROLLER\ncontroller.quorum.voters=1@a:9093,2@b:9093,3@c:9093\n";
    let both = "listeners=PLAINTEXT://:9092,CONTROLLER://:9093\nadvertised.listeners=PLAINTEXT://x:9092\n";
    let config = file(&format!("node.id=2\n{quorum}{both}"));
    assert_eq!((config.quorum_voters.len(), config.is_alone()), (3, false));
    assert_eq!(config.quorum_address(), ("b".to_owned(), 9093));
    // A cluster must not keep committed offsets and transactions on one node alone because nobody said otherwise.
    let replicated =
        (config.offsets_topic_replication_factor, config.transaction_state_log_replication_factor);
    assert_eq!((replicated, config.transaction_state_log_min_isr), ((3, 3), 2));
    let config =
        file(&format!("node.id=2\nprocess.roles=controller\nlisteners=CONTROLLER://:9093\n{quorum}"));
    assert!(config.client_listeners().next().is_none());
    let only_broker = format!("node.id=4\nprocess.roles=broker\nlisteners=PLAINTEXT://d:9092\n{quorum}");
    let config = file(&only_broker);
    assert_eq!(config.quorum_address(), ("d".to_owned(), 9092));
    // Without this the others told clients of "localhost", and the node itself of the address that they came by.
    let [told] = &config.advertised_listeners[..] else { panic!("{:?}", config.advertised_listeners) };
    assert_eq!((told.host.as_str(), told.port), ("d", 9092));
    let told = mistakes(&only_broker.replace("//d:9092", "//:9092"));
    assert!(told.contains("PLAINTEXT listens on every interface"), "{told}");
    let told = mistakes(&only_broker.replace("node.id=4", "node.id=3"));
    assert!(told.contains("so this node, 3 (node.id), must not stand in it"), "{told}");
    let told = mistakes(&only_broker.replace("d:9092", "d:9092,CONTROLLER://:9093"));
    assert!(
        told.contains("a listener that stands in controller.listener.names must not stand here"),
        "{told}"
    );

    // Names in `controller.quorum.bootstrap.servers` that may be other machines' are.
    for (server, is_alone) in [("localhost:9093", true), ("x:9093", true), ("y:9093", false)] {
        let config = file(&format!(
            "node.id=2\ncontroller.listener.names=CONTROLLER\ncontroller.quorum.bootstrap.servers={server}\n\
             listeners=PLAINTEXT://:9092,CONTROLLER://:9093\nadvertised.listeners=PLAINTEXT://x:9092,CONTROLLER://x:9093\n"
        ));
        assert_eq!(config.is_alone(), is_alone, "{server}");
    }
}

/// A config that asks for protection, or for a cluster, must not run without.
#[test]
fn what_is_not_built_is_refused_with_one_clear_message() {
    for (text, part) in [
        (
            "listeners=SASL_SSL://:9092\n",
            "f:1: listeners=SASL_SSL://:9092: listener SASL_SSL asks for SASL_SSL",
        ),
        ("listeners=SSL://:9092\n", "neither TLS nor SASL"),
        ("listeners=A://:1\nlistener.security.protocol.map=A:SASL_PLAINTEXT\n", "asks for SASL_PLAINTEXT"),
        ("listeners=PLAINTEXT://:1\nlistener.security.protocol.map=PLAINTEXT:SSL\n", "asks for SSL"),
        ("security.inter.broker.protocol=SSL\n", "neither TLS nor SASL"),
        ("authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n", "access control"),
        ("create.topic.policy.class.name=a.B\n", "Java classes"),
        ("config.providers=file\n", "Java classes"),
        ("remote.log.storage.system.enable=true\n", "tiered storage"),
        ("process.roles=broker\n", "a node that is only a broker needs"),
        ("process.roles=controller\n", "needs a listener for them"),
        ("controller.quorum.voters=1@a:1,2@b:1,3@c:1\n", "needs a listener for them"),
        ("controller.quorum.bootstrap.servers=a:1,b:1\n", "needs a listener for them"),
        ("controller.quorum.voters=2@a:1\n", "so this node, 1 (node.id), has to stand in it"),
        ("controller.quorum.voters=localhost:1\n", "expected id@host:port"),
    ] {
        let told = mistakes(text);
        assert!(told.contains(part), "{text}: {told}");
        assert_eq!(told.lines().count(), 1, "{text}: {told}");
    }
    // Asked for and switched off is not asked for.
    file("authorizer.class.name=\nremote.log.storage.system.enable=false\nconfig.providers=\n");
}

#[test]
fn directories_come_from_log_dirs_or_log_dir() {
    assert_eq!(file("log.dir=/x\n").log_dirs, [PathBuf::from("/x")]);
    assert_eq!(file("log.dir=/x\nlog.dirs=/a, /b\n").log_dirs, [PathBuf::from("/a"), PathBuf::from("/b")]);
    assert!(mistakes("log.dirs=/a,/a\n").contains("stands twice"));
    assert!(mistakes("log.dirs=\n").contains("one or more directories"));
}

#[test]
fn connections_can_be_limited_by_address() {
    let overrides = file("max.connections.per.ip.overrides=10.0.0.1:5, kafka.example.com:0,[::1]:7\n")
        .max_connections_per_ip_overrides;
    let expected = [("10.0.0.1", 5), ("::1", 7), ("kafka.example.com", 0)];
    assert_eq!(overrides.iter().map(|(host, count)| (host.as_str(), *count)).collect::<Vec<_>>(), expected);
    assert!(mistakes("max.connections.per.ip.overrides=a\n").contains("host:number"));
    assert!(mistakes("max.connections.per.ip.overrides=a:-1\n").contains("host:number"));
}

/// The default of one replica is for a node that is alone; whoever sets more gets more.
#[test]
fn internal_topics_get_what_a_source_says() {
    let config = file("offsets.topic.replication.factor=3\ntransaction.state.log.min.isr=2\n");
    assert_eq!((config.offsets_topic_replication_factor, config.transaction_state_log_min_isr), (3, 2));
}

/// The files that people start from must be right, and say what holds anyway.
#[test]
fn the_files_of_this_tree_are_read_without_a_word() {
    let config = file(include_str!("../../../config/server.properties"));
    let defaults = BrokerConfig::defaults();
    for (key, (value, _)) in &config.values {
        // log.dir is the one of both keys that has a default.
        let same = if key == "log.dirs" { "log.dir" } else { key };
        assert_eq!(Some(value.clone()), defaults.value(same), "{key}");
    }
    let container = file(include_str!("../../../config/container.properties"));
    assert_eq!(listeners(&container), "PLAINTEXT://:9092");
    assert_eq!(container.log_dirs, [PathBuf::from("/var/lib/klamm")]);
}

/// Whoever removes the # before a line of the file that people start from must get what it says.
#[test]
fn the_commented_lines_of_the_file_work_too() {
    let text: String = include_str!("../../../config/server.properties")
        .lines()
        .filter_map(|line| line.strip_prefix('#'))
        .filter(|line| !line.starts_with(' ') && line.contains('='))
        .map(|line| format!("{line}\n"))
        .collect();
    let (config, _) = load_lines(Some(&text), "", "").unwrap();
    assert_eq!(listeners(&config), "INSIDE://:9093 OUTSIDE://:9092");
    assert_eq!(advertised(&config), "INSIDE://kafka:9093 OUTSIDE://kafka.example.com:9092");
}

/// README.md has one table of all defaults that differ from Kafka's; it must not miss one.
#[test]
fn the_readme_lists_every_default_of_our_own() {
    let readme = include_str!("../../../README.md");
    for (key, value) in &BrokerConfig::defaults().defaults {
        assert!(readme.contains(&format!("`{key}`")), "{key}={value}");
    }
}

#[test]
fn settings_that_cannot_be_true_together_are_told() {
    assert_eq!(
        mistakes(
            "group.min.session.timeout.ms=2000\ngroup.max.session.timeout.ms=1000\nmax.connections.per.ip=0\n"
        ),
        "f:1: group.min.session.timeout.ms=2000: it must not be greater than group.max.session.timeout.ms=1000\n\
         f:3: max.connections.per.ip=0: nobody could connect; allow some addresses with \
         max.connections.per.ip.overrides"
    );
    file("max.connections.per.ip=0\nmax.connections.per.ip.overrides=10.0.0.1:5\n");
    assert!(mistakes("replica.lag.time.max.ms=100\n").contains("replica.lag.time.max.ms=100"));
}

/// An address without a port, or one in Kafka's notation, was taken for another.
#[test]
fn the_listener_of_metrics_is_host_and_port() {
    let http = |text: &str| file(&format!("klamm.http.listener={text}\n")).http_listener;
    assert_eq!(http(""), None);
    let at = http("127.0.0.1:9644").unwrap();
    assert_eq!((at.host.as_deref(), at.port), (Some("127.0.0.1"), 9644));
    assert!(http(":9644").unwrap().is_wildcard());
    for wrong in ["9644", "localhost", "http://localhost:9644", "a:1,b:2"] {
        let told = mistakes(&format!("klamm.http.listener={wrong}\n"));
        assert!(told.contains("host:port"), "{wrong}: {told}");
    }
}

/// A typing error in a name is told as what it is, and not passed over where a node could do without.
#[test]
fn a_listener_for_controllers_that_is_not_there_is_told() {
    let listening = "listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093\n";
    assert_eq!(
        mistakes(&format!("{listening}controller.listener.names=CONTROL\n")),
        "f:1: listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093: listener CONTROLLER has no protocol; add \
         CONTROLLER:PLAINTEXT to listener.security.protocol.map; if it is meant by controller.listener.names=CONTROL, which \
         no listener is called, let both have one name"
    );
    let map = "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n";
    assert_eq!(
        warnings(&format!("{listening}{map}controller.listener.names=CONTROL\n")),
        "f:3: controller.listener.names=CONTROL: no listener has this name; listeners has PLAINTEXT, CONTROLLER"
    );
}

#[test]
fn a_comment_behind_a_value_is_told() {
    let told = mistakes("num.partitions=3 # enough\n");
    assert!(told.ends_with("; a comment has to stand on a line of its own"), "{told}");
}
