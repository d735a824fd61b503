//! Reads the usage of GPUs from the vendors' tools.

use std::process::Stdio;
use std::time::Duration;

use hq_core::hardware::{GpuUsage, Share};
use hq_core::resource::descriptor::ResourceDescriptor;
use serde_json::Value;

use crate::hardware::{GPUS_AMD, GPUS_NVIDIA};

const NVIDIA: &[&str] = &[
    "nvidia-smi",
    "--format=csv,noheader",
    "--query-gpu=pci.bus_id,utilization.gpu,memory.used,memory.total",
];
const AMD: &[&str] = &[
    "rocm-smi",
    "--json",
    "--showuse",
    "--showbus",
    "--showmemuse",
];

/// A tool that takes longer than this counts as hanging, together with its driver.
const TOOL_TIMEOUT: Duration = Duration::from_secs(10);

/// The tools for the GPUs that the worker offers.
#[derive(Debug)]
pub(super) struct GpuTools {
    nvidia: Option<Tool>,
    amd: Option<Tool>,
}

/// A tool, and whether its failure has been logged.
#[derive(Debug)]
struct Tool {
    words: &'static [&'static str],
    has_failed: bool,
}

impl GpuTools {
    pub(super) fn of(resources: &ResourceDescriptor) -> Self {
        let tool = |name: &str, words| {
            let is_offered = resources.items.iter().any(|item| &*item.name == name);
            is_offered.then_some(Tool {
                words,
                has_failed: false,
            })
        };
        Self {
            nvidia: tool(GPUS_NVIDIA, NVIDIA),
            amd: tool(GPUS_AMD, AMD),
        }
    }

    pub(super) async fn nvidia(&mut self) -> Option<Vec<GpuUsage>> {
        self.nvidia.as_mut()?.ask(parse_nvidia).await
    }

    pub(super) async fn amd(&mut self) -> Option<Vec<GpuUsage>> {
        self.amd.as_mut()?.ask(parse_amd).await
    }
}

impl Tool {
    async fn ask(&mut self, parse: fn(&str) -> Option<Vec<GpuUsage>>) -> Option<Vec<GpuUsage>> {
        let answer = self.run().await.and_then(|text| {
            let expected = || "its output has an unexpected format".to_owned();
            parse(&text).ok_or_else(expected)
        });
        if let Err(error) = &answer
            && !std::mem::replace(&mut self.has_failed, true)
        {
            let program = self.words[0];
            tracing::warn!("{program} does not report the use of GPUs: {error}");
        }
        answer.ok()
    }

    async fn run(&self) -> Result<String, String> {
        let mut command = tokio::process::Command::new(self.words[0]);
        command.args(&self.words[1..]);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(TOOL_TIMEOUT, command.output())
            .await
            .map_err(|_| format!("no answer for {} s", TOOL_TIMEOUT.as_secs()))?
            .map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(output.status.to_string());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Parses one line `00000000:01:00.0, 5 %, 100 MiB, 24576 MiB` per device.
fn parse_nvidia(text: &str) -> Option<Vec<GpuUsage>> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| {
            let mut fields = line.split(',').map(str::trim);
            let id = fields.next()?;
            let mut number = || fields.next()?.split_whitespace().next();
            let processor = number()?;
            let (used, total) = (number()?, number()?);
            Some(GpuUsage {
                id: id.into(),
                processor: percent(processor),
                memory: Share::of(used.parse().unwrap_or(0), total.parse().unwrap_or(0)),
            })
        })
        .collect()
}

/// Parses a JSON object per card, with numbers as strings.
fn parse_amd(text: &str) -> Option<Vec<GpuUsage>> {
    let cards: Value = serde_json::from_str(text).ok()?;
    let cards = cards.as_object()?.values();
    cards
        .filter(|card| card.get("PCI Bus").is_some())
        .map(|card| {
            let field = |names: &[&str]| {
                let found = names.iter().find_map(|name| card.get(*name));
                percent(found.and_then(Value::as_str).unwrap_or_default())
            };
            Some(GpuUsage {
                id: card.get("PCI Bus")?.as_str()?.into(),
                processor: field(&["GPU use (%)"]),
                // The field name differs between releases.
                memory: field(&["GPU memory use (%)", "GPU Memory Allocated (VRAM%)"]),
            })
        })
        .collect()
}

/// Parses a percentage. "Not supported" and unknown values are zero.
fn percent(text: &str) -> Share {
    let (whole, rest) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let whole: u64 = whole.parse().unwrap_or(0);
    let digit = |index: usize| {
        let digit = rest.chars().nth(index).and_then(|digit| digit.to_digit(10));
        u64::from(digit.unwrap_or(0))
    };
    let hundredths = whole.saturating_mul(100);
    Share::from_hundredths(hundredths.saturating_add(digit(0) * 10 + digit(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(gpus: Option<Vec<GpuUsage>>) -> Vec<(String, u16, u16)> {
        let row = |gpu: GpuUsage| {
            let (processor, memory) = (gpu.processor.hundredths(), gpu.memory.hundredths());
            (gpu.id.into_string(), processor, memory)
        };
        gpus.expect("understood").into_iter().map(row).collect()
    }

    #[test]
    fn answers_of_nvidia_are_understood() {
        let text =
            "00000000:01:00.0, 5 %, 6144 MiB, 24576 MiB\n00000000:02:00.0, [N/A], 0 MiB, 0 MiB\n";
        let expected = [
            ("00000000:01:00.0".to_owned(), 500, 2500),
            ("00000000:02:00.0".to_owned(), 0, 0),
        ];
        assert_eq!(rows(parse_nvidia(text)), expected);
        assert_eq!(parse_nvidia("No devices were found\n"), None);
    }

    #[test]
    fn answers_of_amd_are_understood() {
        let text = r#"{"card0": {"GPU use (%)": "5.2", "GPU memory use (%)": "14.85", "PCI Bus": "0000:C1:00.0"},
                       "card1": {"GPU use (%)": "100", "GPU Memory Allocated (VRAM%)": "7", "PCI Bus": "0000:C2:00.0"},
                       "system": {"Driver version": "6"}}"#;
        let expected = [
            ("0000:C1:00.0".to_owned(), 520, 1485),
            ("0000:C2:00.0".to_owned(), 10_000, 700),
        ];
        assert_eq!(rows(parse_amd(text)), expected);
        assert_eq!(parse_amd("WARNING: no card"), None);
    }
}
