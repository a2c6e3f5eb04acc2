//! The ratios of a report, each with its quartiles, its extremes, and its aim.

use crate::report::Ratio;

pub(crate) fn svg(title: &str, ratios: &[Ratio]) -> String {
    let most = ratios.iter().flat_map(|r| [r.ratio.most, r.aim.value().unwrap_or(0.0)]).fold(1.0, f64::max);
    let step = step(most);
    let end = (most / step).ceil() * step;
    let x = |value: f64| NAMES + value / end * PLOT;
    let height = HEAD + ROW * ratios.len() as f64 + FOOT;
    let width = NAMES + PLOT + VALUES;
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">
<rect width="{width}" height="{height}" fill="white"/>
<text x="12" y="24" font-size="15" font-weight="bold">{}</text>
"#,
        escaped(title)
    );
    let bottom = height - FOOT;
    for tick in 0..=(end / step).round() as usize {
        let value = tick as f64 * step;
        let at = x(value);
        svg += &format!(
            r##"<line x1="{at:.1}" y1="{HEAD}" x2="{at:.1}" y2="{bottom}" stroke="#ddd"/>
<text x="{at:.1}" y="{:.1}" text-anchor="middle" fill="#555">{value:.2}</text>
"##,
            bottom + 16.0
        );
    }
    for (row, Ratio { name, ratio, aim, .. }) in ratios.iter().enumerate() {
        let middle = HEAD + ROW * (row as f64 + 0.5);
        svg += &format!(
            r##"<text x="{:.1}" y="{:.1}" text-anchor="end">{}</text>
<line x1="{:.1}" y1="{middle}" x2="{:.1}" y2="{middle}" stroke="#333"/>
<rect x="{:.1}" y="{:.1}" width="{:.1}" height="10" fill="#8ab"/>
<circle cx="{:.1}" cy="{middle}" r="4" fill="#124"/>
<text x="{:.1}" y="{:.1}">{:.2}</text>
"##,
            NAMES - 10.0,
            middle + 4.0,
            escaped(name),
            x(ratio.least),
            x(ratio.most),
            x(ratio.lower),
            middle - 5.0,
            (x(ratio.upper) - x(ratio.lower)).max(1.0),
            x(ratio.median),
            NAMES + PLOT + 10.0,
            middle + 4.0,
            ratio.median,
        );
        if let Some(aim) = aim.value() {
            let at = x(aim);
            svg += &format!(
                r##"<line x1="{at:.1}" y1="{:.1}" x2="{at:.1}" y2="{:.1}" stroke="#c33" stroke-width="2"/>
"##,
                middle - 9.0,
                middle + 9.0
            );
        }
    }
    svg += &format!(
        r##"<text x="{NAMES}" y="{:.1}" fill="#555">dot: median of the rounds; box: quartiles; line: extremes; red: the aim</text>
</svg>
"##,
        height - 6.0
    );
    svg
}

/// Between marks: a round number, and at most ten marks.
fn step(most: f64) -> f64 {
    let rough = most / 10.0;
    let magnitude = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * magnitude);
    steps.into_iter().find(|step| *step >= rough).unwrap_or(magnitude * 10.0)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

const NAMES: f64 = 330.0;
const PLOT: f64 = 460.0;
const VALUES: f64 = 70.0;
const HEAD: f64 = 44.0;
const FOOT: f64 = 44.0;
const ROW: f64 = 28.0;
