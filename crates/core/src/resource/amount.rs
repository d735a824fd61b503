//! Fixed-point amounts: four decimals, stored as units of 1/10 000.

use std::fmt;

/// The number of units in one whole.
pub const UNITS_PER_WHOLE: u64 = 10_000;

/// An amount of a resource in units of 1/10 000 (2 cpus = 20 000).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Amount(pub u64);

/// A text that is not a valid amount.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AmountError {
    /// The text is not a decimal number.
    #[error("expected a number such as 2 or 0.5")]
    NotANumber,
    /// The amount has more than four decimals.
    #[error("Resource precision exceeded")]
    Precision,
    /// The amount is larger than 2^32 - 1.
    #[error("number is too large")]
    TooLarge,
}

impl Amount {
    /// An amount of zero.
    pub const ZERO: Amount = Amount(0);

    /// Creates an amount of whole items.
    #[must_use]
    pub const fn whole(count: u32) -> Self {
        Amount(count as u64 * UNITS_PER_WHOLE)
    }

    /// Returns the number of complete items, without the fraction.
    #[must_use]
    pub const fn whole_part(self) -> u64 {
        self.0 / UNITS_PER_WHOLE
    }

    /// Returns the units beyond the last complete item, fewer than [`UNITS_PER_WHOLE`].
    #[must_use]
    pub const fn fraction_units(self) -> u64 {
        self.0 % UNITS_PER_WHOLE
    }

    /// Parses an amount such as `2`, `0.5`, `1_000` or `3.1400`.
    ///
    /// # Errors
    ///
    /// See [`AmountError`]. Zero is accepted here, although requests reject it.
    pub fn parse(text: &str) -> Result<Self, AmountError> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let has_point = text.contains('.');
        let digits_ok = |part: &str| part.bytes().all(|b| b.is_ascii_digit() || b == b'_');
        if whole.is_empty()
            || !whole.as_bytes()[0].is_ascii_digit()
            || !digits_ok(whole)
            || !fraction.bytes().all(|b| b.is_ascii_digit())
            || (has_point && fraction.is_empty())
        {
            return Err(AmountError::NotANumber);
        }
        let whole: u32 = whole
            .replace('_', "")
            .parse()
            .map_err(|_| AmountError::TooLarge)?;
        let fraction = fraction.trim_end_matches('0');
        if fraction.len() > 4 {
            return Err(AmountError::Precision);
        }
        let units: u64 = format!("{fraction:0<4}")
            .parse()
            .map_err(|_| AmountError::NotANumber)?;
        Ok(Amount(u64::from(whole) * UNITS_PER_WHOLE + units))
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, fraction) = (self.whole_part(), self.fraction_units());
        if fraction == 0 {
            return write!(f, "{whole}");
        }
        let digits = format!("{fraction:04}");
        write!(f, "{whole}.{}", digits.trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_shows_decimals() {
        for (text, units, shown) in [
            ("2", 20_000, "2"),
            ("0.5", 5_000, "0.5"),
            ("1_000", 10_000_000, "1000"),
            ("3.1400", 31_400, "3.14"),
            ("0.0001", 1, "0.0001"),
        ] {
            let amount = Amount::parse(text).expect(text);
            assert_eq!((amount.0, amount.to_string().as_str()), (units, shown));
        }
    }

    #[test]
    fn refuses_what_is_no_amount() {
        assert_eq!(Amount::parse("0.00001"), Err(AmountError::Precision));
        assert_eq!(Amount::parse("4294967296"), Err(AmountError::TooLarge));
        for text in ["", "x", "-1", ".5", "1.", "1e3", "_1", "1.2.3"] {
            assert_eq!(Amount::parse(text), Err(AmountError::NotANumber), "{text}");
        }
    }
}
