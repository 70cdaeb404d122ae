//! Apache Kafka's jars from Maven Central, and the JVM that runs them.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process;

/// The jars of one Kafka version, and our Java agent compiled against them.
#[derive(Clone, Debug)]
pub struct Jars {
    version: String,
    folder: PathBuf,
    agent: PathBuf,
}

impl Jars {
    /// The version that `LANEWAY_KAFKA_VERSION` names.
    pub fn asked() -> Result<Self, String> {
        let version = env::var("LANEWAY_KAFKA_VERSION").unwrap_or_default();
        Self::of(if version.is_empty() {
            VERSION
        } else {
            &version
        })
    }

    /// Takes the jars out of the cache, or downloads them. The error says what is missing.
    pub fn of(version: &str) -> Result<Self, String> {
        if !version
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-')
        {
            return Err(format!("LANEWAY_KAFKA_VERSION={version:?} is no version"));
        }
        java_is_there()?;
        let cache = cache()?;
        let folder = cache.join(version);
        if !folder.is_dir() {
            download(version, &cache, &folder, &kafka(version))?;
        }
        let agent = compiled_agent(&cache, version, &folder)?;
        Ok(Self {
            version: version.to_owned(),
            folder,
            agent,
        })
    }

    /// Another version's jars, for servers: our agent stays this version's.
    pub fn beside(&self, version: &str) -> Result<Self, String> {
        let cache = cache()?;
        let folder = cache.join(version);
        if !folder.is_dir() {
            download(version, &cache, &folder, &kafka(version))?;
        }
        Ok(Self {
            version: version.to_owned(),
            folder,
            agent: self.agent.clone(),
        })
    }

    /// The Kafka version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// A JVM for `class`, with the jars, the agent and our logging in its class path. Its flags are
    /// small: tests share two cores with it.
    pub fn java<A: AsRef<OsStr>>(
        &self,
        heap: &str,
        jvm: &[A],
        class: &str,
    ) -> Result<Command, String> {
        let mut command = Command::new("java");
        command
            .args([
                &format!("-Xmx{heap}"),
                "-XX:+UseSerialGC",
                "-XX:-UsePerfData",
            ])
            .args(jvm)
            .arg("-cp")
            .arg(format!(
                "{}:{}/*",
                self.agent.display(),
                self.folder.display()
            ))
            .arg(class);
        Ok(command)
    }
}

/// A JVM for `java/Chaos.java`, with these jars.
pub(crate) fn chaos(jars: &Jars) -> Result<Command, String> {
    let name = format!("chaos-{}", jars.version);
    let source = ("Chaos", CHAOS_SOURCE);
    let beside = [("log4j2.properties", LOGGING)];
    let classes = compiled(&cache()?, &name, &jars.folder, source, &beside)?;
    let mut command = Command::new("java");
    command
        .args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:-UsePerfData"])
        .arg("-XX:TieredStopAtLevel=1")
        .arg("-cp")
        .arg(format!("{}:{}/*", classes.display(), jars.folder.display()))
        .arg("Chaos");
    Ok(command)
}

/// A JVM for the Confluent Parallel Consumer and `java/Parallel.java`, with the Kafka client that it
/// brings: its class path has nothing of the servers'.
pub(crate) fn parallel_consumer() -> Result<Command, String> {
    java_is_there()?;
    let cache = cache()?;
    let name = format!("parallel-consumer-{PARALLEL}");
    let folder = cache.join(&name);
    if !folder.is_dir() {
        let group = "io.confluent.parallelconsumer";
        let wanted = dependency(group, "parallel-consumer-core", PARALLEL);
        download(&name, &cache, &folder, &wanted)?;
    }
    let classes = compiled(&cache, &name, &folder, ("Parallel", PARALLEL_SOURCE), &[])?;
    let mut command = Command::new("java");
    command
        .args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:-UsePerfData"])
        .arg("-XX:TieredStopAtLevel=1")
        .arg("-cp")
        .arg(format!("{}:{}/*", classes.display(), folder.display()))
        .arg("Parallel");
    Ok(command)
}

fn java_is_there() -> Result<(), String> {
    let output = Command::new("java")
        .arg("-version")
        .stdin(Stdio::null())
        .output()
        .map_err(|_| "no java on the PATH (a JDK 17 or later is needed)".to_owned())?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    match java_major(&text) {
        Some(major) if major >= JAVA_MIN => Ok(()),
        Some(major) => Err(format!(
            "java is version {major}; {JAVA_MIN} or later is needed"
        )),
        None => Err(format!(
            "java -version answered {:?}",
            text.lines().next().unwrap_or("")
        )),
    }
}

/// `openjdk version "17.0.15" 2025-04-15` is 17; `"1.8.0_412"` is 8.
fn java_major(text: &str) -> Option<u32> {
    let quoted = text.split('"').nth(1)?;
    let mut numbers = quoted.split(['.', '-', '+', '_']).map(str::parse);
    match numbers.next()?.ok()? {
        1 => numbers.next()?.ok(),
        major => Some(major),
    }
}

fn cache() -> Result<PathBuf, String> {
    let set = |name| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let base = set("XDG_CACHE_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".cache")))
        .ok_or("neither XDG_CACHE_HOME nor HOME is set: no place for Kafka's jars")?;
    let cache = base.join("laneway-kafka");
    fs::create_dir_all(&cache).map_err(|e| format!("{}: {e}", cache.display()))?;
    Ok(cache)
}

/// Into a folder beside the final one, then renamed: two test processes at once cannot spoil it,
/// and half a download is never taken for a whole one.
fn download(name: &str, cache: &Path, folder: &Path, wanted: &str) -> Result<(), String> {
    let work = beside(cache, name)?;
    fs::write(work.join("pom.xml"), pom(wanted)).map_err(|e| format!("{}: {e}", work.display()))?;
    let lib = work.join("lib");
    let output = Command::new("mvn")
        .args(["-q", "-B", "-f"])
        .arg(work.join("pom.xml"))
        .args(["dependency:copy-dependencies", "-DincludeScope=runtime"])
        .arg(format!("-DoutputDirectory={}", lib.display()))
        .stdin(Stdio::null())
        .output()
        .map_err(|_| "no mvn on the PATH (Maven is needed to download jars)".to_owned());
    let result = output.and_then(|output| {
        if output.status.success() && lib.is_dir() {
            move_into_place(&lib, folder)
        } else {
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let said = said
                .lines()
                .find(|line| line.contains("ERROR"))
                .unwrap_or("")
                .to_owned();
            Err(format!("Maven could not resolve {name}: {said}"))
        }
    });
    let _ = fs::remove_dir_all(&work);
    result
}

fn compiled_agent(cache: &Path, version: &str, jars: &Path) -> Result<PathBuf, String> {
    let name = format!("agent-{version}");
    let beside = [
        ("log4j2.properties", LOGGING),
        ("log4j.properties", LOGGING_V1),
    ];
    compiled(cache, &name, jars, ("Agent", AGENT), &beside)
}

/// The classes of one source, and files beside them.
fn compiled(
    cache: &Path,
    name: &str,
    jars: &Path,
    (class, text): (&str, &str),
    files: &[(&str, &str)],
) -> Result<PathBuf, String> {
    // `DefaultHasher::new` has fixed keys: the same source finds its classes again.
    let mut hasher = DefaultHasher::new();
    (text, files).hash(&mut hasher);
    let folder = cache.join(format!("{name}-{:016x}", hasher.finish()));
    if folder.is_dir() {
        return Ok(folder);
    }
    let work = beside(cache, class)?;
    let source = work.join(format!("{class}.java"));
    let classes = work.join("classes");
    let written = fs::create_dir_all(&classes)
        .and_then(|()| fs::write(&source, text))
        .and_then(|()| {
            let mut files = files.iter();
            files.try_for_each(|(file, text)| fs::write(classes.join(file), text))
        });
    let result = written
        .map_err(|e| format!("{}: {e}", work.display()))
        .and_then(|()| {
            let output = Command::new("javac")
                .arg("-d")
                .arg(&classes)
                .arg("-cp")
                .arg(format!("{}/*", jars.display()))
                .arg(&source)
                .stdin(Stdio::null())
                .output()
                .map_err(|_| "no javac on the PATH (a JDK, not a JRE, is needed)".to_owned())?;
            if output.status.success() {
                move_into_place(&classes, &folder)
            } else {
                Err(format!(
                    "javac: {}",
                    String::from_utf8_lossy(&output.stderr)
                ))
            }
        });
    let _ = fs::remove_dir_all(&work);
    result.map(|()| folder)
}

fn beside(cache: &Path, name: &str) -> Result<PathBuf, String> {
    let unique = process::scratch()?;
    let unique = unique
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let work = cache.join(format!(".{name}-{unique}"));
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(&work).map_err(|e| format!("{}: {e}", work.display()))?;
    Ok(work)
}

fn move_into_place(from: &Path, to: &Path) -> Result<(), String> {
    match fs::rename(from, to) {
        Ok(()) => Ok(()),
        // Another test process was quicker; what it put there is the same.
        Err(_) if to.is_dir() => Ok(()),
        Err(e) => Err(format!("{}: {e}", to.display())),
    }
}

/// What Kafka's servers and tools need.
fn kafka(version: &str) -> String {
    let mut all = dependency("org.apache.kafka", "kafka_2.13", version);
    all += &dependency("org.apache.kafka", "kafka-tools", version);
    if !version.starts_with("3.") {
        // 4.x brings no logging back end of its own; without one a failing node says nothing.
        for artifact in ["log4j-slf4j-impl", "log4j-core"] {
            all += &dependency("org.apache.logging.log4j", artifact, LOG4J);
        }
    }
    all
}

fn dependency(group: &str, artifact: &str, version: &str) -> String {
    format!(
        "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>\
         <version>{version}</version></dependency>\n"
    )
}

fn pom(dependencies: &str) -> String {
    format!(
        "<project xmlns=\"http://maven.apache.org/POM/4.0.0\">\n\
         <modelVersion>4.0.0</modelVersion>\n\
         <groupId>laneway</groupId><artifactId>kafka-jars</artifactId><version>1</version>\n\
         <dependencies>\n{dependencies}</dependencies>\n</project>\n"
    )
}

/// The default of `LANEWAY_KAFKA_VERSION`.
pub const VERSION: &str = "4.3.1";
const JAVA_MIN: u32 = 17;
const LOG4J: &str = "2.25.4";
/// The last but one of its line; its offset maps are those of the last.
const PARALLEL: &str = "0.5.3.2";
const PARALLEL_SOURCE: &str = include_str!("../java/Parallel.java");
const CHAOS_SOURCE: &str = include_str!("../java/Chaos.java");
const AGENT: &str = include_str!("../java/Agent.java");
const LOGGING: &str = "status = error\n\
    appender.err.type = Console\nappender.err.name = err\nappender.err.target = SYSTEM_ERR\n\
    appender.err.layout.type = PatternLayout\nappender.err.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1} %m%n\n\
    rootLogger.level = warn\nrootLogger.appenderRef.err.ref = err\n";
const LOGGING_V1: &str = "log4j.rootLogger=WARN, err\n\
    log4j.appender.err=org.apache.log4j.ConsoleAppender\nlog4j.appender.err.Target=System.err\n\
    log4j.appender.err.layout=org.apache.log4j.PatternLayout\n\
    log4j.appender.err.layout.ConversionPattern=%d{HH:mm:ss.SSS} %p %c{1} %m%n\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_java_are_read() {
        assert_eq!(
            java_major("openjdk version \"17.0.15\" 2025-04-15"),
            Some(17)
        );
        assert_eq!(java_major("openjdk version \"25\" 2025-09-16"), Some(25));
        assert_eq!(java_major("java version \"1.8.0_412\""), Some(8));
        assert_eq!(java_major("openjdk version \"21-ea\" 2023-09-19"), Some(21));
        assert_eq!(java_major("The program 'java' is not here"), None);
    }

    #[test]
    fn a_version_cannot_name_another_folder() {
        assert!(Jars::of("../4.3.1").unwrap_err().contains("no version"));
    }
}
