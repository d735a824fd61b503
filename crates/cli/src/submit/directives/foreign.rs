//! `#SBATCH` and `#PBS` lines: what they would be as `#HQ` lines.
//!
//! They are not obeyed, because half of them would mean something else here; they are only translated for people.

use std::collections::BTreeSet;

/// Lines of a script that are for a batch system.
#[derive(Debug, Default)]
pub(super) struct Foreign {
    /// `#SBATCH` or `#PBS`; empty if there are none.
    word: &'static str,
    count: usize,
    /// As options of `hq submit`.
    options: Vec<String>,
    /// Those that are nothing here.
    others: BTreeSet<String>,
}

/// All of them up to the first command.
pub(super) fn find(head: &[u8]) -> Foreign {
    let mut found = Foreign::default();
    let text = String::from_utf8_lossy(head);
    let lines = text.lines().map(str::trim);
    for line in lines.take_while(|line| line.is_empty() || line.starts_with('#')) {
        for word in ["#SBATCH", "#PBS"] {
            let Some(rest) = line.strip_prefix(word) else {
                continue;
            };
            if rest.starts_with(char::is_whitespace) {
                found.word = word;
                found.count += 1;
                // A comment may follow.
                let rest = rest.split(" #").next().unwrap_or_default();
                found.add(rest);
            }
        }
    }
    found
}

impl Foreign {
    fn add(&mut self, line: &str) {
        let mut words = line.split_whitespace().flat_map(split_value).peekable();
        while let Some(option) = words.next() {
            let value = words
                .next_if(|word| !word.starts_with('-'))
                .unwrap_or_default();
            match translate(self.word, &option, &value) {
                Some(options) => self.options.extend(options),
                None => {
                    self.others.insert(option);
                }
            }
        }
    }

    /// What to say; `None` if there are no such lines.
    pub(super) fn text(&self, source: &str) -> Option<String> {
        let word = self.word;
        let lines = match self.count {
            0 => return None,
            1 => format!("1 {word} line, which hq does not read"),
            count => format!("{count} {word} lines, which hq does not read"),
        };
        let mut text = format!("{source} has {lines}");
        if !self.options.is_empty() {
            text.push_str(&format!(
                "; write instead: `#HQ {}`",
                self.options.join(" ")
            ));
        }
        if !self.others.is_empty() {
            let others: Vec<&str> = self.others.iter().map(String::as_str).collect();
            text.push_str(&format!(
                "; nothing here: {} (see `hq doc coming-from`)",
                others.join(" ")
            ));
        }
        Some(text)
    }
}

/// `--array=1-4` as two words, and `-n4`.
fn split_value(word: &str) -> Vec<String> {
    if let Some((option, value)) = word
        .split_once('=')
        .filter(|(option, _)| option.starts_with("--"))
    {
        return vec![option.to_owned(), value.to_owned()];
    }
    let is_short = word.len() > 2 && word.starts_with('-') && !word.starts_with("--");
    match word.split_at_checked(2).filter(|_| is_short) {
        Some((option, value)) => vec![option.to_owned(), value.to_owned()],
        None => vec![word.to_owned()],
    }
}

fn translate(word: &str, option: &str, value: &str) -> Option<Vec<String>> {
    let one = |text: String| Some(vec![text]);
    let is_slurm = word == "#SBATCH";
    match option {
        "--array" | "-a" => array(value),
        "-J" if is_slurm => one(format!("--name {value}")),
        "-J" | "-t" if !is_slurm => array(value),
        "--job-name" => one(format!("--name {value}")),
        "-N" if !is_slurm => one(format!("--name {value}")),
        "--cpus-per-task" | "-c" => one(format!("--cpus {value}")),
        "--mem" | "--mem-per-cpu" => one(format!("--resource mem={value}")),
        "--gpus" | "-G" | "--gpus-per-task" => {
            one(format!("--resource gpus/nvidia={}", last_number(value)))
        }
        "--gres" if value.starts_with("gpu") => {
            one(format!("--resource gpus/nvidia={}", last_number(value)))
        }
        "--time" | "-t" => one(format!("--time-limit {}", clock(value)?)),
        "--output" | "-o" => one(format!("--stdout {}", path(value))),
        "--error" | "-e" => one(format!("--stderr {}", path(value))),
        "--chdir" | "-D" => one(format!("--cwd {value}")),
        "--nodes" | "-N" if value != "1" => one(format!("--nodes {value}")),
        // A task has one node anyway.
        "--nodes" | "-N" => Some(Vec::new()),
        "-l" => chunk(value),
        _ => None,
    }
}

/// `1-100%5`: how many run at once is decided by cpus.
fn array(value: &str) -> Option<Vec<String>> {
    Some(vec![format!("--array {}", value.split('%').next()?)])
}

/// `gpu:a100:2` asks for two, `gpu` for one.
fn last_number(value: &str) -> &str {
    value
        .rsplit(':')
        .next()
        .filter(|last| last.bytes().all(|b| b.is_ascii_digit()) && !last.is_empty())
        .unwrap_or("1")
}

/// Slurm's `90` is minutes, and `1-12:00:00` a day and a half.
fn clock(value: &str) -> Option<String> {
    if value.bytes().all(|b| b.is_ascii_digit()) {
        return Some(format!("{value}min"));
    }
    let Some((days, rest)) = value.split_once('-') else {
        return Some(value.to_owned());
    };
    let days: u32 = days.parse().ok()?;
    let mut fields = rest.splitn(2, ':');
    let hours: u32 = fields.next()?.parse().ok()?;
    let rest = fields.next().unwrap_or("00:00");
    Some(format!(
        "{}:{rest}",
        days.checked_mul(24)?.checked_add(hours)?
    ))
}

/// Placeholders of Slurm as ours.
fn path(value: &str) -> String {
    value
        .replace("%A", "%{JOB_ID}")
        .replace("%j", "%{JOB_ID}")
        .replace("%a", "%{TASK_ID}")
}

/// `select=1:ncpus=4:mem=8gb:ngpus=1` and `walltime=01:00:00` of PBS.
fn chunk(value: &str) -> Option<Vec<String>> {
    let mut options = Vec::new();
    for part in value.split([':', ',']) {
        match part.split_once('=') {
            Some(("ncpus" | "ppn", cpus)) => options.push(format!("--cpus {cpus}")),
            Some(("mem", memory)) => options.push(format!("--resource mem={memory}")),
            Some(("ngpus", gpus)) => options.push(format!("--resource gpus/nvidia={gpus}")),
            Some(("select" | "nodes", "1")) => {}
            Some(("select" | "nodes", nodes)) => options.push(format!("--nodes {nodes}")),
            Some(("walltime", _)) => {
                // Its value has colons.
                let time = value.split("walltime=").nth(1)?.split(',').next()?;
                options.push(format!("--time-limit {time}"));
                break;
            }
            Some(_) | None => {}
        }
    }
    (!options.is_empty()).then_some(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(script: &str) -> String {
        find(script.as_bytes()).text("a.sh").unwrap_or_default()
    }

    #[test]
    fn lines_of_batch_systems_are_translated() {
        assert_eq!(
            told(
                "#!/bin/bash\n#SBATCH --array=1-4%2 --mem=2G\n#SBATCH -p fast # comment\n#SBATCH -t 1-12:00:00\necho hi\n#SBATCH --no"
            ),
            "a.sh has 3 #SBATCH lines, which hq does not read; write instead: \
             `#HQ --array 1-4 --resource mem=2G --time-limit 36:00:00`; nothing here: -p (see `hq doc coming-from`)"
        );
        assert_eq!(
            told("#PBS -N train\n#PBS -l select=1:ncpus=4:mem=8gb,walltime=01:30:00\n#PBS -J 0-9"),
            "a.sh has 3 #PBS lines, which hq does not read; write instead: \
             `#HQ --name train --cpus 4 --resource mem=8gb --time-limit 01:30:00 --array 0-9`"
        );
        assert_eq!(
            told("#SBATCH --gres=gpu:a100:2 -o out-%A_%a.txt -c8"),
            "a.sh has 1 #SBATCH line, which hq does not read; write instead: \
             `#HQ --resource gpus/nvidia=2 --stdout out-%{JOB_ID}_%{TASK_ID}.txt --cpus 8`"
        );
        assert_eq!(told("#!/bin/sh\n#HQ --cpus 2\necho #SBATCH -n 3"), "");
    }
}
