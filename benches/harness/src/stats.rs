//! The middle and the spread of what was measured.

/// The middle of some values, and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    /// A quarter of the values is below.
    pub lower: f64,
    /// A quarter of the values is above.
    pub upper: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    /// Of at least one value.
    pub fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |part| percentile(&sorted, part);
        Self { median: at(0.5), lower: at(0.25), upper: at(0.75), least: at(0.0), most: at(1.0) }
    }
}

/// Of sorted values; between two of them, in proportion.
pub fn percentile(sorted: &[f64], part: f64) -> f64 {
    let last = sorted.len().checked_sub(1).expect("at least one value");
    let place = part * last as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * place.fract()
}
