//! Parses resource requests: `2`, `0.5 tight!`, `all`, and `NAME=REQUEST`.

use hq_core::resource::amount::{Amount, AmountError, UNITS_PER_WHOLE};
use hq_core::resource::request::{Policy, ResourceEntry};
use hq_core::sizing::FirstMemory;

use super::size::unit_bits;
use super::{Cursor, ParseError};

const WHAT: &str = "resource request";

/// The resource that is counted in MiB.
const MEMORY: &str = "mem";

/// The value for a request that is learned from finished tasks.
pub(crate) const AUTO: &str = "auto";

/// A value of `--resource`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum ResourceArg {
    /// The amount that it specifies.
    Amount(ResourceEntry),
    /// Memory that is sized according to the needs of other tasks.
    AutoMemory(FirstMemory),
}

impl ResourceArg {
    /// Returns the name of the resource.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Amount(entry) => &entry.resource,
            Self::AutoMemory(_) => MEMORY,
        }
    }
}

/// An amount of one resource, and the policy for choosing it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RequestAmount {
    /// How indices are chosen.
    pub(crate) policy: Policy,
    /// The amount. Zero for [`Policy::All`].
    pub(crate) amount: Amount,
}

impl RequestAmount {
    pub(crate) const ONE: Self = Self {
        policy: Policy::Compact,
        amount: Amount::whole(1),
    };

    /// Returns the request for the resource with this name.
    pub(crate) fn for_resource(self, name: &str) -> ResourceEntry {
        ResourceEntry {
            resource: name.into(),
            policy: self.policy,
            amount: self.amount,
        }
    }
}

/// Parses `AMOUNT`, `AMOUNT POLICY` or `all`.
pub(crate) fn parse_request(text: &str) -> Result<RequestAmount, ParseError> {
    parse_rest(Cursor::new(WHAT, text), false)
}

/// Parses an amount of the named resource, such as `4 compact`. Memory may have a unit.
pub(crate) fn parse_request_of(name: &str, text: &str) -> Result<RequestAmount, ParseError> {
    parse_rest(Cursor::new(WHAT, text), is_memory(name))
}

/// Parses `NAME=REQUEST`. Memory may have a unit: `mem=4G` is `mem=4096`.
pub(crate) fn parse_named_request(text: &str) -> Result<ResourceEntry, ParseError> {
    let mut cursor = Cursor::new(WHAT, text);
    let name = parse_resource_name(&mut cursor)?;
    cursor.set_what(WHAT);
    if !cursor.consume("=") {
        return Err(cursor.unexpected(&["`=`"]));
    }
    parse_rest(cursor, is_memory(name)).map(|request| request.for_resource(name))
}

/// Parses `NAME=REQUEST`, or `NAME=none`, which has the amount 0.
pub(crate) fn parse_changed_resource(text: &str) -> Result<ResourceEntry, ParseError> {
    let Some(name) = text.strip_suffix("=none") else {
        return parse_named_request(text);
    };
    // The amount makes it a request, so that a wrong name is refused.
    let mut entry = parse_named_request(&format!("{name}=1"))?;
    entry.amount = Amount::ZERO;
    Ok(entry)
}

/// Parses `NAME=REQUEST`, or `mem=auto` with the size of the first tasks: `mem=auto:4G`.
pub(crate) fn parse_resource_arg(text: &str) -> Result<ResourceArg, ParseError> {
    let mut cursor = Cursor::new(WHAT, text);
    if !(cursor.consume(MEMORY) && cursor.consume("=") && cursor.consume(AUTO)) {
        return parse_named_request(text).map(ResourceArg::Amount);
    }
    if cursor.is_at_end() {
        return Ok(ResourceArg::AutoMemory(FirstMemory::Share));
    }
    if !cursor.consume(":") {
        return Err(cursor.unexpected(&["`:` and a size", "end of input"]));
    }
    let start = cursor.pos();
    let amount = parse_quantity(&mut cursor, true)?;
    cursor.finish(&["`K`", "`M`", "`G`", "`T`", "end of input"])?;
    if amount == Amount::ZERO {
        return Err(cursor.note_at(start, "Zero resources cannot be requested"));
    }
    Ok(ResourceArg::AutoMemory(FirstMemory::Given(amount)))
}

/// Parses a name: a letter, then letters, digits and `/`.
pub(crate) fn parse_resource_name<'a>(cursor: &mut Cursor<'a>) -> Result<&'a str, ParseError> {
    cursor.set_what("resource name");
    if !cursor.peek().is_some_and(|c| c.is_ascii_alphabetic()) {
        return Err(cursor.unexpected(&["alphabetic character"]));
    }
    let name = cursor.take_while(|c| c.is_ascii_alphanumeric() || c == '/');
    if !cursor.is_at_end() && cursor.peek() != Some('=') {
        return Err(cursor.unexpected(&["alphanumeric character", "`/`", "`=`"]));
    }
    Ok(name)
}

/// Parses an amount, which may be zero.
pub(crate) fn parse_amount(cursor: &mut Cursor<'_>) -> Result<Amount, ParseError> {
    let start = cursor.pos();
    if !cursor.peek().is_some_and(|c| c.is_ascii_digit()) {
        return Err(cursor.unexpected(&["number"]));
    }
    let digits = cursor.take_while(|c| c.is_ascii_digit() || c == '_' || c == '.');
    Amount::parse(digits).map_err(|error| {
        let note = match error {
            AmountError::NotANumber => "Invalid number",
            AmountError::Precision => "Resource precision exceeded",
            AmountError::TooLarge => "Number is too large, expected less than 4294967296",
        };
        cursor.note_at(start, note)
    })
}

/// Parses an amount. Memory may have a unit.
pub(super) fn parse_quantity(
    cursor: &mut Cursor<'_>,
    is_memory: bool,
) -> Result<Amount, ParseError> {
    let start = cursor.pos();
    if !is_memory {
        return parse_amount(cursor);
    }
    let before = cursor.clone();
    let amount = parse_amount(cursor).map_err(|error| {
        let digits = |c: char| c.is_ascii_digit() || c == '_';
        // The number is most likely in bytes.
        match before.clone().take_while(digits).len() {
            10.. => before.note_at(
                start,
                "Number is too large: without a unit it is MiB; write `4G` or `4096M`",
            ),
            _ => error,
        }
    })?;
    let Some(kib) = parse_memory_unit(cursor) else {
        return Ok(amount);
    };
    let units = u128::from(amount.0) * u128::from(kib) / 1_024;
    let most = u128::from(u32::MAX) * u128::from(UNITS_PER_WHOLE);
    match u64::try_from(units) {
        Ok(units) if u128::from(units) <= most => Ok(Amount(units)),
        Ok(_) | Err(_) => Err(cursor.note_at(
            start,
            "Number is too large, expected less than 4294967296 MiB",
        )),
    }
}

/// Returns whether a resource is counted in MiB, so that amounts may have units.
pub(crate) fn is_memory(name: &str) -> bool {
    name == MEMORY
}

/// Consumes a memory unit, and returns its size in 1/1024 MiB. The default is MiB.
fn parse_memory_unit(cursor: &mut Cursor<'_>) -> Option<u64> {
    let start = cursor.clone();
    let unit = cursor.take_while(|c| c.is_ascii_alphabetic());
    let bits = unit_bits(unit);
    if bits.is_none() {
        *cursor = start;
    }
    Some(1 << (bits? - 10))
}

fn parse_rest(mut cursor: Cursor<'_>, is_memory: bool) -> Result<RequestAmount, ParseError> {
    const EXPECTED: &[&str] = &[
        "`compact`",
        "`compact!`",
        "`tight`",
        "`tight!`",
        "`scatter`",
        "end of input",
    ];
    cursor.skip_blanks();
    if !cursor.peek().is_some_and(|c| c.is_ascii_digit()) {
        if !cursor.consume("all") {
            return Err(cursor.unexpected(&["number", "`all`"]));
        }
        cursor.skip_blanks();
        cursor.finish(&["end of input"])?;
        return Ok(RequestAmount {
            policy: Policy::All,
            amount: Amount::ZERO,
        });
    }
    let start = cursor.pos();
    let amount = parse_quantity(&mut cursor, is_memory)?;
    if cursor.peek().is_some_and(|c| "kKmMgGtT".contains(c)) && !cursor.rest().starts_with("tight")
    {
        let expected: &[&str] = if is_memory {
            let unit = cursor.clone().take_while(|c| c.is_ascii_alphabetic());
            let note =
                format!("Unknown unit `{unit}`: units are K, M, G and T, each also with B or iB");
            return Err(cursor.note_at(cursor.pos(), note));
        } else {
            &["blank", "end of input (only `mem` has units)"]
        };
        return Err(cursor.unexpected(expected));
    }
    let has_blank = cursor.skip_blanks();
    let policy_start = cursor.clone();
    let policy = match cursor.take_while(|c| c.is_ascii_alphabetic() || c == '!') {
        "" | "compact" => Policy::Compact,
        "compact!" => Policy::ForceCompact,
        "tight" => Policy::Tight,
        "tight!" => Policy::ForceTight,
        "scatter" => Policy::Scatter,
        _ => return Err(policy_start.unexpected(EXPECTED)),
    };
    if !has_blank && cursor.pos() > policy_start.pos() {
        return Err(policy_start.unexpected(&["blank", "end of input"]));
    }
    cursor.skip_blanks();
    cursor.finish(EXPECTED)?;
    if amount == Amount::ZERO {
        return Err(cursor.note_at(start, "Zero resources cannot be requested"));
    }
    Ok(RequestAmount { policy, amount })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_amounts_and_policies() {
        for (text, shown) in [
            ("2", "2 compact"),
            ("1_000", "1000 compact"),
            ("0.5 compact", "0.5 compact"),
            ("4 compact!", "4 compact!"),
            ("4  tight", "4 tight"),
            ("4 tight!", "4 tight!"),
            ("3 scatter", "3 scatter"),
            ("all", "all"),
        ] {
            let request = parse_request(text).expect(text).for_resource("x");
            assert_eq!(request.to_string(), shown, "{text}");
        }
        let named = parse_named_request("gpus/nvidia=1.5 tight").expect("valid");
        assert_eq!(
            (&*named.resource, named.to_string().as_str()),
            ("gpus/nvidia", "1.5 tight")
        );
    }

    #[test]
    fn memory_may_have_a_unit() {
        for (text, mib) in [
            ("mem=4G", "4096 compact"),
            ("mem=1.5GiB", "1536 compact"),
            ("mem=512k", "0.5 compact"),
            ("mem=500M", "500 compact"),
            ("mem=2TB", "2097152 compact"),
            ("mem=7", "7 compact"),
            ("mem=512MiB", "512 compact"),
            ("mem=0.5GiB", "512 compact"),
            ("mem=4gb tight", "4096 tight"),
        ] {
            let request = parse_named_request(text).expect(text);
            assert_eq!(request.to_string(), mib, "{text}");
        }
        for text in ["cpus=4G", "mem=4X", "mem=9999999T"] {
            assert!(parse_named_request(text).is_err(), "{text}");
        }
        let error = parse_request("4G").expect_err("no unit").to_string();
        assert!(error.contains("only `mem` has units"), "{error}");
        let mib = parse_request_of("mem", "2G").map(|request| request.amount);
        assert_eq!(mib, Ok(Amount(2_048 * UNITS_PER_WHOLE)));
        assert!(parse_request_of("cpus", "2G").is_err());
        let error = parse_request_of("mem", "4Gb/s").expect_err("no unit");
        assert!(!error.to_string().contains("only `mem`"), "{error}");
    }

    #[test]
    fn memory_may_follow_from_what_others_needed() {
        let gib = |count: u64| FirstMemory::Given(Amount(count * 1_024 * UNITS_PER_WHOLE));
        for (text, first) in [("mem=auto", FirstMemory::Share), ("mem=auto:4G", gib(4))] {
            assert_eq!(parse_resource_arg(text), Ok(ResourceArg::AutoMemory(first)));
        }
        let plain = parse_named_request("mem=4G").map(ResourceArg::Amount);
        assert_eq!(parse_resource_arg("mem=4G"), plain);
        for text in [
            "mem=auto:",
            "mem=auto:0",
            "mem=auto 4G",
            "cpus=auto",
            "mem=auto:4G tight",
        ] {
            assert!(parse_resource_arg(text).is_err(), "{text}");
        }
    }

    #[test]
    fn refuses_with_the_documented_notes() {
        for (text, note) in [
            ("0", "--- Zero resources cannot be requested"),
            ("0.0000", "--- Zero resources cannot be requested"),
            ("0.00001", "--- Resource precision exceeded"),
            ("1.2.3", "--- Invalid number"),
            ("4294967296", "--- Number is too large"),
            ("x", "--- Unexpected token `x`"),
            ("-1", "--- Unexpected token `-`"),
            ("1 loose", "--- Unexpected token `l`"),
            ("2compact", "--- Unexpected token `c`"),
            ("2 compact x", "--- Unexpected token `x`"),
            ("all 2", "--- Unexpected token `2`"),
            ("", "(the input was empty)"),
        ] {
            let error = parse_request(text).expect_err(text).to_string();
            assert!(error.contains(note), "{text}: {error}");
        }
        for text in ["1x=2", "a_b=2", "=2", "foo", "foo="] {
            let error = parse_named_request(text).expect_err(text).to_string();
            assert!(
                error.contains("while attempting to parse resource"),
                "{text}: {error}"
            );
        }
    }
}
