//! Parses the coupling of resource groups: `cpus[0]:gpus[0],cpus[1]:gpus[1]=128`.

use hq_core::resource::descriptor::{CouplingWeight, ResourceItem, ResourceKind};

/// The weight of a pair without an explicit weight.
const DEFAULT_WEIGHT: u16 = 256;

/// Parses a coupling for the worker's resources, which are sorted by name.
pub(crate) fn parse_coupling(
    text: &str,
    items: &[ResourceItem],
) -> Result<Vec<CouplingWeight>, String> {
    let mut weights: Vec<CouplingWeight> = Vec::new();
    for part in text.split(',') {
        let weight = parse_pair(part.trim(), items)?;
        let pair = |w: &CouplingWeight| (w.resource1, w.group1, w.resource2, w.group2);
        if weights.iter().any(|other| pair(other) == pair(&weight)) {
            return Err("Repeated coupling definition".to_owned());
        }
        weights.push(weight);
    }
    weights.sort_by_key(|w| (w.resource1, w.group1, w.resource2, w.group2));
    Ok(weights)
}

fn parse_pair(text: &str, items: &[ResourceItem]) -> Result<CouplingWeight, String> {
    let (groups, weight) = match text.split_once('=') {
        None => (text, DEFAULT_WEIGHT),
        Some((groups, weight)) => {
            let parsed = weight.trim().parse();
            (
                groups,
                parsed.map_err(|_| format!("Invalid weight: {}", weight.trim()))?,
            )
        }
    };
    let (left, right) = groups.split_once(':').ok_or("Missing ':'")?;
    let a = parse_group(left.trim(), items)?;
    let b = parse_group(right.trim(), items)?;
    if a == b {
        return Err("Repeated coupling definition".to_owned());
    }
    let ((resource1, group1), (resource2, group2)) = (a.min(b), a.max(b));
    Ok(CouplingWeight {
        resource1,
        group1,
        resource2,
        group2,
        weight: u32::from(weight),
    })
}

fn parse_group(text: &str, items: &[ResourceItem]) -> Result<(u32, u32), String> {
    let (name, rest) = text.split_once('[').ok_or("Missing '['")?;
    let group = rest.trim_end().strip_suffix(']').ok_or("Missing ']'")?;
    let group: u32 = group.trim().parse().map_err(|_| "Invalid group index")?;
    let name = name.trim();
    let found = items
        .iter()
        .enumerate()
        .find(|(_, item)| &*item.name == name);
    let (index, item) = found.ok_or_else(|| format!("Resource not found: {name}"))?;
    let ResourceKind::Groups(groups) = &item.kind else {
        return Err(format!("Resource '{name}' has only a single group"));
    };
    if group as usize >= groups.len() {
        return Err(format!("Invalid group id {group} for resource '{name}'"));
    }
    Ok((u32::try_from(index).unwrap_or(u32::MAX), group))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::resource::parse_definition;

    fn items() -> Vec<ResourceItem> {
        ["cpus=2x4", "gpus=2x1", "mem=sum(5)"]
            .iter()
            .map(|text| parse_definition(text).expect("valid"))
            .collect()
    }

    #[test]
    fn orders_pairs_and_fills_in_the_weight() {
        let weights = parse_coupling("gpus[1]:cpus[1]=128, cpus[0]:gpus[0]", &items());
        let expected = [(0, 0, 1, 0, 256), (0, 1, 1, 1, 128)].map(
            |(resource1, group1, resource2, group2, weight)| CouplingWeight {
                resource1,
                group1,
                resource2,
                group2,
                weight,
            },
        );
        assert_eq!(weights, Ok(expected.to_vec()));
        assert!(parse_coupling("cpus[0]:cpus[1]", &items()).is_ok());
    }

    #[test]
    fn refuses_with_the_documented_texts() {
        for (text, message) in [
            ("foo[0]:cpus[0]", "Resource not found: foo"),
            ("cpus[0]gpus[0]", "Missing ':'"),
            ("cpus0]:gpus[0]", "Missing '['"),
            ("cpus[0:gpus[0]", "Missing ']'"),
            ("cpus[x]:gpus[0]", "Invalid group index"),
            ("cpus[0]:gpus[0]=x", "Invalid weight: x"),
            ("cpus[0]:gpus[0]=65536", "Invalid weight: 65536"),
            ("mem[0]:cpus[0]", "Resource 'mem' has only a single group"),
            ("cpus[5]:gpus[0]", "Invalid group id 5 for resource 'cpus'"),
            (
                "cpus[0]:gpus[0],gpus[0]:cpus[0]",
                "Repeated coupling definition",
            ),
            ("", "Missing ':'"),
        ] {
            let error = parse_coupling(text, &items()).expect_err(text);
            assert_eq!(error, message, "{text}");
        }
    }
}
