//! What client and broker said, in the order in which it arrived, so that a failure can be read side by side.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Lines kept per speaker; a failure's cause is near the end.
const LINES_MAX: usize = 120;
const WIDTH_MAX: usize = 600;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Speaker {
    Client,
    /// The only node.
    Broker,
    /// One of several.
    Node(usize),
    Runner,
}

impl fmt::Display for Speaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Speaker::Client => f.write_str("client"),
            Speaker::Broker => f.write_str("broker"),
            Speaker::Node(number) => write!(f, "node {number}"),
            Speaker::Runner => f.write_str("runner"),
        }
    }
}

pub(crate) struct Transcript {
    begin: Instant,
    lines: Mutex<Vec<(Duration, Speaker, String)>>,
}

impl Transcript {
    pub(crate) fn new() -> Arc<Transcript> {
        Arc::new(Transcript { begin: Instant::now(), lines: Mutex::new(Vec::new()) })
    }

    pub(crate) fn say(&self, speaker: Speaker, line: &str) {
        let mut lines = self.lines.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        lines.push((self.begin.elapsed(), speaker, line.chars().take(WIDTH_MAX).collect()));
        if lines.len() > 40 * LINES_MAX {
            lines.drain(..20 * LINES_MAX);
        }
    }

    /// Follows a node's log file, which may not be there yet and may begin anew, until the returned value is dropped.
    pub(crate) fn follow(self: &Arc<Self>, path: PathBuf, speaker: Speaker) -> Follower {
        let stop = Arc::new(AtomicBool::new(false));
        let (transcript, stopped) = (Arc::clone(self), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let (mut position, mut rest) = (0, String::new());
            loop {
                let last = stopped.load(Ordering::SeqCst);
                for line in new_lines(&path, &mut position, &mut rest) {
                    transcript.say(speaker, &line);
                }
                if last {
                    return;
                }
                std::thread::sleep(Duration::from_millis(30));
            }
        });
        Follower { stop, thread: Some(thread) }
    }
}

fn new_lines(path: &PathBuf, position: &mut u64, rest: &mut String) -> Vec<String> {
    let Ok(mut file) = File::open(path) else { return Vec::new() };
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    if length < *position {
        *position = 0;
    }
    let mut bytes = Vec::new();
    if file.seek(SeekFrom::Start(*position)).is_err() || file.read_to_end(&mut bytes).is_err() {
        return Vec::new();
    }
    *position += bytes.len() as u64;
    rest.push_str(&String::from_utf8_lossy(&bytes));
    let mut lines: Vec<String> = rest.split('\n').map(str::to_owned).collect();
    *rest = lines.pop().unwrap_or_default();
    lines
}

/// Ends the following of a log when dropped, after one last look.
pub(crate) struct Follower {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Display for Transcript {
    /// The last lines of each speaker, merged by time.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.lines.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut said: BTreeMap<Speaker, usize> = BTreeMap::new();
        let mut shown: Vec<_> = lines
            .iter()
            .rev()
            .filter(|(_, speaker, _)| {
                let said = said.entry(*speaker).or_default();
                *said += 1;
                *said < LINES_MAX
            })
            .collect();
        shown.reverse();
        let mut last = (Speaker::Runner, String::new(), 0);
        for (at, speaker, line) in shown {
            // a client that retries fills logs with lines that differ in nothing but their times; what a scenario
            // itself says (on its standard output, so without a blank in front) is shown line by line
            let pattern: String = line.chars().filter(|letter| !letter.is_ascii_digit()).collect();
            let logged = matches!(speaker, Speaker::Broker | Speaker::Node(_)) || line.starts_with(' ');
            if logged && last.0 == *speaker && last.1 == pattern {
                last.2 += 1;
                continue;
            }
            more(f, last.2)?;
            last = (*speaker, pattern, 0);
            writeln!(f, "  {:8.3} {speaker} | {line}", at.as_secs_f64())?;
        }
        more(f, last.2)
    }
}

fn more(f: &mut fmt::Formatter<'_>, count: usize) -> fmt::Result {
    if count > 0 { writeln!(f, "                  | ({count} more like it)") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log full of one retry's lines once pushed out of sight what the client had said.
    #[test]
    fn lines_alike_are_counted() {
        let transcript = Transcript::new();
        transcript.say(Speaker::Client, "begin");
        for i in 0..50 {
            transcript.say(Speaker::Broker, &format!("12:00:{i} refused"));
        }
        transcript.say(Speaker::Client, "end");
        let shown = transcript.to_string();
        let words: Vec<_> = shown.lines().map(|line| line.split("| ").last().unwrap()).collect();
        assert_eq!(words, ["begin", "12:00:0 refused", "(49 more like it)", "end"]);
    }
}
