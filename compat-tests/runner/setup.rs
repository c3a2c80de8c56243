//! Fetches and builds what the chosen scenarios need, through the ordinary package clients, once per machine and outside
//! the tree: a missing tool is installed when the runner is root and named exactly when it is not. Nothing is skipped.
//!
//! The words of a scenario's `needs:`
//! - `kafka-VERSION`: that version's jars, a JDK, and the host that runs its tools many to a JVM
//! - `kcat`: Debian's kcat
//! - `strace`: Debian's strace; `faketime`: Debian's faketime
//! - `python`, `python-NAME`: an environment with clients/python/requirements[-NAME].txt
//! - `node`: clients/node/package-lock.json
//! - `go`: the scenario's own folder, built; `cargo`: the scenario's own crate, built
//! - `go-NAME`: scenarios/go/NAME, built, for a scenario in another language: `$GO_PROGRAMS/NAME`
//! - `spring-VERSION`: clients/spring with that version of Spring Boot
//! - `librdkafka`: librdkafka with its test runner, built from the source in clients/librdkafka/package-lock.json's
//!   package: `$LIBRDKAFKA`
//! - `kafka-python`: the source package of the kafka-python in clients/python/requirements-tests.txt, for its tests:
//!   `$KAFKA_PYTHON`
//! - `rust-rdkafka`: the tests of the crate rdkafka that scenarios/rust/rdkafka has, built: `$RUST_RDKAFKA`
//! - `connect`: the jars of clients/connect, Kafka Connect with its connectors of files and MirrorMaker 2: `$CONNECT`

use crate::scenario::Scenario;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

/// Where everything is that was fetched or built.
pub(crate) struct Setup {
    cache: PathBuf,
    clients: PathBuf,
}

/// Prepares every need of the chosen scenarios.
pub(crate) fn prepare(home: &Path, scenarios: &[Scenario]) -> Result<Setup> {
    let setup = Setup { cache: cache()?, clients: home.join("clients") };
    std::fs::create_dir_all(&setup.cache)?;
    let oracle = home.join("oracle/kafka");
    // Maven waits for the network while cargo and go compile
    let (from_maven, others): (Vec<_>, Vec<_>) =
        distinct_needs(scenarios).into_iter().partition(|(need, _)| {
            ["kafka", "spring", "connect"].contains(&need.split('-').next().unwrap_or_default())
                && *need != "kafka-python"
        });
    let lane = |needs: Vec<(&str, &Scenario)>| -> Result<()> {
        for (need, scenario) in needs {
            let begin = Instant::now();
            setup
                .fulfil(need, scenario, &oracle)
                .with_context(|| format!("{} needs {need}", scenario.name))?;
            if begin.elapsed().as_secs() >= 1 {
                println!("{:34} {:6} {:6.1} s", format!("setup {need}"), "", begin.elapsed().as_secs_f64());
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let maven = scope.spawn(|| lane(from_maven));
        let rest = lane(others);
        maven.join().map_err(|_| anyhow::anyhow!("the thread that fetches from Maven panicked"))?.and(rest)
    })?;
    Ok(setup)
}

/// Each need once, with a scenario that has it; programs that are built are needed once a file.
fn distinct_needs(scenarios: &[Scenario]) -> Vec<(&str, &Scenario)> {
    let mut done = BTreeSet::new();
    let mut needs = Vec::new();
    for scenario in scenarios {
        for need in &scenario.needs {
            let file = ["go", "cargo"].contains(&need.as_str()).then_some(&scenario.file);
            if done.insert((need, file)) {
                needs.push((need.as_str(), scenario));
            }
        }
    }
    needs
}

/// KLAMM_COMPAT_CACHE, or a folder in the user's cache.
fn cache() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("KLAMM_COMPAT_CACHE") {
        return Ok(PathBuf::from(path));
    }
    Ok(PathBuf::from(std::env::var_os("HOME").context("neither KLAMM_COMPAT_CACHE nor HOME is set")?)
        .join(".cache/klamm/compat"))
}

impl Setup {
    /// The command that runs a scenario's file.
    pub(crate) fn command(&self, scenario: &Scenario) -> Result<Command> {
        let file = &scenario.file;
        let mut command = match file.extension().and_then(|extension| extension.to_str()) {
            Some("py") => Command::new(self.python(scenario)?),
            Some("sh") => Command::new("bash"),
            Some("js") => Command::new("node"),
            Some("java") => self.java(scenario)?,
            Some("go") => return Ok(self.with_environment(Command::new(self.go_program(file)?))),
            Some("rs") => return Ok(self.with_environment(Command::new(self.cargo_program(file)?))),
            _ => bail!("no interpreter is known for {}", file.display()),
        };
        command.arg(file);
        Ok(self.with_environment(command))
    }

    fn with_environment(&self, mut command: Command) -> Command {
        command
            .env("PYTHONPATH", format!("{0}/python:{0}/../wire", self.clients.display()))
            .env("PYTHONUNBUFFERED", "1")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("NODE_PATH", self.node().map(|folder| folder.join("node_modules")).unwrap_or_default())
            .env("TOOL_HOST", self.tool_host())
            .env("KAFKA_JARS", self.jars())
            .env("SPRING", &self.cache)
            .env("CONNECT", self.connect())
            .env("LIBRDKAFKA", self.librdkafka().join(LIBRDKAFKA_SOURCE))
            .env("KAFKA_PYTHON", self.kafka_python())
            .env("RUST_RDKAFKA", self.rust_rdkafka())
            .env("GO_PROGRAMS", self.go_programs())
            .env("CLIENTS", &self.clients);
        command
    }

    fn fulfil(&self, need: &str, scenario: &Scenario, oracle: &Path) -> Result<()> {
        match need.split_once('-').unwrap_or((need, "")) {
            ("kafka", "python") => self.fetch_kafka_python(),
            ("kafka", version) => self.kafka(version, oracle),
            ("kcat", "") => program("kcat", "kcat"),
            ("strace", "") => program("strace", "strace"),
            ("faketime", "") => program("faketime", "faketime"),
            ("python", _) => self.build_python(need),
            ("node", "") => self.build_node(),
            ("go", "") => self.build_go(&scenario.file),
            ("go", name) => self.build_go(&self.clients.join("../scenarios/go").join(name).join("main.go")),
            ("cargo", "") => self.build_cargo(&scenario.file),
            ("spring", version) => self.build_spring(version),
            ("connect", "") => self.fetch_connect(),
            ("librdkafka", "") => self.build_librdkafka(),
            ("rust", "rdkafka") => self.build_rust_rdkafka(),
            _ => bail!("the runner knows no such need"),
        }
    }

    fn jars(&self) -> PathBuf {
        std::env::var_os("KAFKA_JARS").map_or_else(|| self.cache.join("../kafka"), PathBuf::from)
    }

    fn kafka(&self, version: &str, oracle: &Path) -> Result<()> {
        jdk()?;
        program("unzip", "unzip")?;
        run(Command::new("bash").arg(oracle).args(["get", version]).env("KAFKA_JARS", self.jars()))?;
        let source = self.clients.join("java/ToolHost.java");
        if !self.tool_host().join("ToolHost.class").exists() {
            run(Command::new("javac")
                .args(["-nowarn", "-proc:none", "-Xlint:-options", "-d"])
                .arg(self.tool_host())
                .arg(source))?;
        }
        Ok(())
    }

    fn tool_host(&self) -> PathBuf {
        self.cache.join(named("tool-host", &[&self.clients.join("java/ToolHost.java")]))
    }

    /// A single-file Java program with the client jars of the Kafka version that it needs.
    fn java(&self, scenario: &Scenario) -> Result<Command> {
        let version = scenario
            .needs
            .iter()
            .find_map(|need| need.strip_prefix("kafka-"))
            .context("a Java scenario needs a kafka-VERSION")?;
        let folder = self.jars().join(version);
        let mut command = Command::new("java");
        command
            .args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"])
            .arg(folder.join("libs/*"));
        command.arg(format!("-Dlog4j.configuration=file:{}", folder.join("log4j.properties").display()));
        command.arg(format!("-Dlog4j2.configurationFile={}", folder.join("log4j2.properties").display()));
        Ok(command)
    }

    fn requirements(&self, need: &str) -> PathBuf {
        self.clients.join("python").join(format!("requirements{}.txt", need.trim_start_matches("python")))
    }

    fn python_environment(&self, need: &str) -> PathBuf {
        self.cache.join(named(need, &[&self.requirements(need)]))
    }

    /// The interpreter with the packages that a scenario needs, else the machine's.
    fn python(&self, scenario: &Scenario) -> Result<PathBuf> {
        Ok(match scenario.needs.iter().find(|need| need.starts_with("python")) {
            Some(need) => self.python_environment(need).join("bin/python"),
            None => PathBuf::from("python3"),
        })
    }

    fn build_python(&self, need: &str) -> Result<()> {
        let environment = self.python_environment(need);
        if environment.join("complete").exists() {
            return Ok(());
        }
        program("python3", "python3")?;
        if run(Command::new("python3").args(["-c", "import ensurepip, venv"])).is_err() {
            install("python3-venv")?;
        }
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment))?;
        run(Command::new(environment.join("bin/pip"))
            .args([
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--only-binary",
                ":all:",
                "--requirement",
            ])
            .arg(self.requirements(need)))?;
        std::fs::write(environment.join("complete"), "")?;
        Ok(())
    }

    fn node(&self) -> Result<PathBuf> {
        Ok(self.cache.join(named("node", &[&self.clients.join("node/package-lock.json")])))
    }

    fn build_node(&self) -> Result<()> {
        let folder = self.node()?;
        if folder.join("complete").exists() {
            return Ok(());
        }
        program("node", "nodejs")?;
        program("npm", "npm")?;
        std::fs::create_dir_all(&folder)?;
        for name in ["package.json", "package-lock.json"] {
            std::fs::copy(self.clients.join("node").join(name), folder.join(name))?;
        }
        run(Command::new("npm").args(["ci", "--no-audit", "--no-fund", "--silent"]).current_dir(&folder))?;
        std::fs::write(folder.join("complete"), "")?;
        Ok(())
    }

    fn go_programs(&self) -> PathBuf {
        self.cache.join("go")
    }

    fn go_program(&self, file: &Path) -> Result<PathBuf> {
        Ok(self.go_programs().join(folder_name(file)?))
    }

    fn build_go(&self, file: &Path) -> Result<()> {
        program("go", "golang-go")?;
        let folder = file.parent().context("a file has a folder")?;
        run(Command::new("go")
            .args(["build", "-o"])
            .arg(self.go_program(file)?)
            .arg(".")
            .current_dir(folder)
            .env("GOFLAGS", "-mod=readonly"))
    }

    /// `<crate>/src/main.rs` builds to a program named as its folder.
    fn cargo_program(&self, file: &Path) -> Result<PathBuf> {
        let folder = file.parent().and_then(Path::parent).context("src/main.rs has a crate's folder")?;
        Ok(self.cache.join("cargo/release").join(folder.file_name().context("a crate's folder has a name")?))
    }

    fn build_cargo(&self, file: &Path) -> Result<()> {
        program("make", "make")?;
        let folder = file.parent().and_then(Path::parent).context("src/main.rs has a crate's folder")?;
        run(Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["build", "--release", "--locked", "--quiet"])
            .current_dir(folder)
            .env("CARGO_TARGET_DIR", self.cache.join("cargo"))
            .env_remove("RUSTFLAGS"))
    }

    fn build_spring(&self, version: &str) -> Result<()> {
        jdk()?;
        let source = self.clients.join("spring");
        let folder = self.cache.join(format!("spring-{version}"));
        let application = source.join("src/main/java/community/Application.java");
        let stamp = folder.join(named("complete", &[&source.join("pom.xml"), &application]));
        if stamp.exists() {
            return Ok(());
        }
        let mut maven = Command::new("mvn");
        maven.args(["-q", "-B", "package"]).arg(format!("-Dspring-boot.version={version}"));
        if !version.starts_with('3') {
            maven.arg("-Dspring-boot.kafka-module");
        }
        run(maven.arg(format!("-Dbuild.folder={}", folder.display())).current_dir(&source))?;
        std::fs::write(stamp, "")?;
        Ok(())
    }
}

impl Setup {
    fn connect(&self) -> PathBuf {
        self.cache.join(named("connect", &[&self.clients.join("connect/pom.xml")]))
    }

    fn fetch_connect(&self) -> Result<()> {
        jdk()?;
        let folder = self.connect();
        if folder.join("complete").exists() {
            return Ok(());
        }
        run(Command::new("mvn")
            .args(["-q", "-B", "dependency:copy-dependencies"])
            .arg(format!("-DoutputDirectory={}", folder.join("libs").display()))
            .current_dir(self.clients.join("connect")))?;
        std::fs::write(folder.join("complete"), "")?;
        Ok(())
    }
}

/// Where librdkafka is in the npm package that has it.
const LIBRDKAFKA_SOURCE: &str = "node_modules/@confluentinc/kafka-javascript/deps/librdkafka";

/// The tests of other projects, from the source packages that the registries serve.
impl Setup {
    fn librdkafka(&self) -> PathBuf {
        self.cache.join(named("librdkafka", &[&self.clients.join("librdkafka/package-lock.json")]))
    }

    /// librdkafka's own way to build; its tests link to what they build with.
    fn build_librdkafka(&self) -> Result<()> {
        let folder = self.librdkafka();
        if folder.join("complete").exists() {
            return Ok(());
        }
        program("npm", "npm")?;
        for (name, package) in [("make", "make"), ("g++", "g++"), ("python3", "python3")] {
            program(name, package)?;
        }
        let header = Command::new("sh").args(["-c", "echo '#include <openssl/ssl.h>' | cc -E -"]).output();
        if !header.is_ok_and(|output| output.status.success()) {
            install("libssl-dev")?;
        }
        std::fs::create_dir_all(&folder)?;
        for name in ["package.json", "package-lock.json"] {
            std::fs::copy(self.clients.join("librdkafka").join(name), folder.join(name))?;
        }
        let npm = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"];
        run(Command::new("npm").args(npm).current_dir(&folder))?;
        let build = "./configure --disable-gssapi --disable-curl && make -j2 libs && make -j2 -C tests build";
        run(Command::new("sh").args(["-c", build]).current_dir(folder.join(LIBRDKAFKA_SOURCE)))?;
        std::fs::write(folder.join("complete"), "")?;
        Ok(())
    }

    fn kafka_python(&self) -> PathBuf {
        self.cache.join(named("kafka-python", &[&self.requirements("python-tests")]))
    }

    fn fetch_kafka_python(&self) -> Result<()> {
        let folder = self.kafka_python();
        if folder.join("complete").exists() {
            return Ok(());
        }
        self.build_python("python-tests")?;
        let wanted = std::fs::read_to_string(self.requirements("python-tests"))?;
        let package = wanted.lines().find(|line| line.starts_with("kafka-python=="));
        std::fs::create_dir_all(&folder)?;
        run(Command::new(self.python_environment("python-tests").join("bin/pip"))
            .args(["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", ":all:"])
            .arg(package.context("requirements-tests.txt has no kafka-python")?)
            .current_dir(&folder))?;
        let unpack = "tar -xzf kafka_python-*.tar.gz --strip-components=1 && touch complete";
        run(Command::new("sh").args(["-c", unpack]).current_dir(&folder))
    }

    fn rust_rdkafka(&self) -> PathBuf {
        self.cache.join(named("rust-rdkafka", &[&self.clients.join("../scenarios/rust/rdkafka/Cargo.lock")]))
    }

    /// A copy of the crate as cargo has fetched it for our own scenario, with its tests built.
    fn build_rust_rdkafka(&self) -> Result<()> {
        let folder = self.rust_rdkafka();
        if folder.join("complete").exists() {
            return Ok(());
        }
        program("make", "make")?;
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        run(Command::new("bash")
            .arg(self.clients.join("rust-rdkafka/build"))
            .arg(self.clients.join("../scenarios/rust/rdkafka"))
            .arg(&folder)
            .env("CARGO", cargo)
            .env_remove("RUSTFLAGS"))?;
        std::fs::write(folder.join("complete"), "")?;
        Ok(())
    }
}

fn jdk() -> Result<()> {
    program("java", "default-jdk-headless")?;
    program("javac", "default-jdk-headless")?;
    program("mvn", "maven")
}

fn folder_name(file: &Path) -> Result<String> {
    Ok(file
        .parent()
        .and_then(Path::file_name)
        .context("a program's folder has a name")?
        .to_string_lossy()
        .into_owned())
}

/// A name that changes with the contents of the files, so that a changed list is fetched anew.
fn named(name: &str, files: &[&Path]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64; // FNV-1a: stable over builds, unlike the standard library's hasher
    for file in files {
        for byte in std::fs::read(file).unwrap_or_default() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    format!("{name}-{hash:016x}")
}

/// Makes sure that a program is there.
fn program(name: &str, package: &str) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|folder| folder.join(name).is_file()) {
        return Ok(());
    }
    install(package).with_context(|| format!("the program {name} is missing"))
}

static APT: Mutex<()> = Mutex::new(());

fn install(package: &str) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("install the package {package} first (only root may: apt-get install {package})");
    }
    let _one_at_a_time = APT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    println!("setup: apt-get install {package}");
    let apt = |arguments: &[&str]| {
        run(Command::new("apt-get").args(arguments).env("DEBIAN_FRONTEND", "noninteractive"))
    };
    if apt(&["install", "-y", "-qq", package]).is_err() {
        apt(&["update", "-qq"])?;
        apt(&["install", "-y", "-qq", package])?;
    }
    Ok(())
}

/// Runs a command to its end; its output is in the error when it fails.
fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("run {program}"))?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
        bail!("{program} {} ended with {}:\n{}", arguments.join(" "), output.status, said.trim());
    }
    Ok(())
}
