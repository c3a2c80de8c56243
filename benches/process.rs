//! What the kernel says of a process and of the machine.

use std::fs;

use anyhow::{Context, Result};

/// What a process has used so far.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Usage {
    /// User and system time of all its threads, in seconds; the kernel counts in steps of 10 ms.
    pub cpu_seconds: f64,
    /// What it holds in memory now (VmRSS), in bytes.
    pub resident_bytes: u64,
    /// The most that it ever held (VmHWM), in bytes.
    pub resident_bytes_max: u64,
    /// Its threads.
    pub threads: u64,
}

impl Usage {
    /// Of the process of this id.
    pub fn of(pid: u32) -> Result<Usage> {
        let status = read(&format!("/proc/{pid}/status"))?;
        let stat = read(&format!("/proc/{pid}/stat"))?;
        Usage::parse(&status, &stat).with_context(|| format!("/proc/{pid} has not the fields that it should"))
    }

    fn parse(status: &str, stat: &str) -> Option<Usage> {
        let field = |name: &str| {
            let line = status.lines().find(|line| line.split(':').next() == Some(name))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        };
        // The second field is the program's name in parentheses and may hold spaces; utime and stime are the
        // 14th and 15th of all.
        let mut after_name = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
        let ticks: u64 = after_name.next()?.parse::<u64>().ok()? + after_name.next()?.parse::<u64>().ok()?;
        Some(Usage {
            cpu_seconds: ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
            resident_bytes: field("VmRSS")? * 1024,
            resident_bytes_max: field("VmHWM")? * 1024,
            threads: field("Threads")?,
        })
    }
}

/// One line on what the numbers were measured on.
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let cpu = read("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':')).map(|(_, name)| name);
    let memory = read("/proc/meminfo").unwrap_or_default();
    let gib = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(0, |kib| kib >> 20);
    let kernel = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cores} cores ({}), {gib} GiB, Linux {}", model.unwrap_or("unknown").trim(), kernel.trim())
}

/// How many tasks ran or waited for a processor, averaged over the last minute.
pub fn load() -> Result<f64> {
    let average = read("/proc/loadavg")?;
    average.split_whitespace().next().and_then(|word| word.parse().ok()).context("/proc/loadavg")
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name with spaces and parentheses shifts every field of a parser that splits at spaces.
    #[test]
    fn a_strange_name_shifts_no_field() {
        let status = "Name:\tx\nVmHWM:\t  300 kB\nVmRSS:\t  200 kB\nThreads:\t7\n";
        let stat = "12 (a ) b) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 7 0 100";
        let usage = Usage::parse(status, stat).unwrap();
        assert_eq!(usage.cpu_seconds, 200.0 / rustix::param::clock_ticks_per_second() as f64);
        assert_eq!((usage.resident_bytes, usage.resident_bytes_max, usage.threads), (204_800, 307_200, 7));
    }

    #[test]
    fn this_process_has_used_something() {
        let usage = Usage::of(std::process::id()).unwrap();
        assert!(usage.resident_bytes > 100_000 && usage.resident_bytes_max >= usage.resident_bytes);
    }
}
