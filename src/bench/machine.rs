//! The machine that figures were measured on, and what a process uses of it. Linux only; elsewhere figures are missing, not wrong.

use crate::kernel::Kernel;
use serde::Serialize;

/// Ticks of `/proc/…/stat` a second: the same on every Linux that programs see.
const TICKS: f64 = 100.0;

/// Where figures come from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    /// Name of the CPU.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Memory, MiB.
    pub memory_mib: u64,
    /// Kernel of the encoder and the index ([`crate::kernel::detect::KERNEL_ENV`] forces another).
    pub kernel: &'static str,
    /// Commit of the checkout that the program was started in, when there is one.
    pub commit: Option<String>,
}

impl Machine {
    /// This machine.
    pub fn here() -> Self {
        let cpu = read("/proc/cpuinfo").and_then(|text| field(&text, "model name")).unwrap_or_else(|| std::env::consts::ARCH.into());
        Self {
            cpu,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: read("/proc/meminfo").and_then(|text| kib(&text, "MemTotal")).unwrap_or(0) / 1024,
            kernel: Kernel::best().name(),
            commit: commit(),
        }
    }
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_prefix(':').map(|v| v.trim().to_owned()))
}

fn kib(text: &str, name: &str) -> Option<u64> {
    field(text, name)?.split_whitespace().next()?.parse().ok()
}

fn commit() -> Option<String> {
    let out = std::process::Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output().ok()?;
    let text = String::from_utf8(out.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|c| out.status.success() && !c.is_empty())
}

fn process(pid: Option<u32>, file: &str) -> Option<String> {
    read(&pid.map_or_else(|| format!("/proc/self/{file}"), |pid| format!("/proc/{pid}/{file}")))
}

/// Memory in use by a process (this one without a number), MiB.
pub fn rss_mib(pid: Option<u32>) -> Option<f64> {
    Some(kib(&process(pid, "status")?, "VmRSS")? as f64 / 1024.0)
}

/// Seconds of CPU that a process (this one without a number) has used, to 10 ms.
pub fn cpu_seconds(pid: Option<u32>) -> Option<f64> {
    let stat = process(pid, "stat")?;
    // the name may hold anything, but ends with the last bracket
    let rest = stat.rsplit_once(')')?.1;
    let mut fields = rest.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((user + system) as f64 / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_name() {
        let text = "processor\t: 0\nmodel name\t: A CPU @ 2: fast\nMemTotal:     2048 kB\n";
        assert_eq!(field(text, "model name").as_deref(), Some("A CPU @ 2: fast"));
        assert_eq!((kib(text, "MemTotal"), kib(text, "MemFree")), (Some(2048), None));
    }

    #[test]
    fn this_process_uses_something() {
        if cfg!(target_os = "linux") {
            assert!(rss_mib(None).unwrap() > 0.5 && cpu_seconds(None).is_some());
        }
        assert!(Machine::here().cores > 0);
    }
}
