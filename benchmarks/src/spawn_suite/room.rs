//! Checks that the machine has room for the memory and the processes of a measurement. Without this
//! check a measurement could take them from other programs.

use super::contestants::Setting;

/// Memory that stays free for other programs, in MiB.
const SPARE_MIB: u64 = 1024;

/// Processes that stay free for other programs.
const SPARE_PROCESSES: u64 = 1000;

/// Returns what the machine lacks.
pub(crate) fn lacks(setting: &Setting) -> Option<String> {
    let number = |name: &str| setting.number(name).map_or(0, u64::from);
    let memory = number("rss");
    if memory > 0 && memory + SPARE_MIB > available_mib() {
        return Some(format!("no room for {memory} MiB"));
    }
    let at_once = if number("after") > 0 {
        number("count")
    } else {
        0
    };
    let processes = number("children") + at_once;
    if processes > 0 && processes + SPARE_PROCESSES > free_processes() {
        return Some(format!("no room for {processes} processes"));
    }
    None
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn available_mib() -> u64 {
    let text = read("/proc/meminfo");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib / 1024)
}

/// Returns the number of processes that may still be created. Threads count as processes.
fn free_processes() -> u64 {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let own = rustix::process::getrlimit(rustix::process::Resource::Nproc).current;
    let limits =
        ["pid_max", "threads-max"].map(|name| number(&read(&format!("/proc/sys/kernel/{name}"))));
    let limit = limits.into_iter().chain([own]).flatten().min();
    let load = read("/proc/loadavg");
    let used = load
        .split_whitespace()
        .nth(3)
        .and_then(|field| number(field.split_once('/')?.1));
    limit.map_or(u64::MAX, |limit| limit.saturating_sub(used.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_machine_has_is_named() {
        let check = |args: &[&str], expected: Option<&str>| {
            let setting = Setting {
                args: args.iter().map(|&arg| arg.to_owned()).collect(),
                ..Setting::default()
            };
            assert_eq!(lacks(&setting).as_deref(), expected, "{args:?}");
        };
        check(&["rss=4294967295"], Some("no room for 4294967295 MiB"));
        check(&["children=9000000"], Some("no room for 9000000 processes"));
        let many = "count=9000000";
        check(&[many, "after=1"], Some("no room for 9000000 processes"));
        // They do not live at the same time.
        check(&[many], None);
        check(&["rss=0", "children=0"], None);
    }
}
