//! Figures, as a table, as JSON, and as a plot.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};
use sqlx::PgPool;

use crate::rounds::{Plan, Round};
use crate::stats::Spread;
use crate::{machine, plot};

/// What a figure should be.
#[derive(Clone, Copy, Debug)]
pub enum Aim {
    None,
    AtLeast(f64),
    AtMost(f64),
}

impl Aim {
    pub(crate) const fn value(self) -> Option<f64> {
        match self {
            Self::None => None,
            Self::AtLeast(value) | Self::AtMost(value) => Some(value),
        }
    }

    fn words(self) -> String {
        match self {
            Self::None => String::new(),
            Self::AtLeast(value) => format!("≥ {value}"),
            Self::AtMost(value) => format!("≤ {value}"),
        }
    }

    fn is_met(self, value: f64) -> &'static str {
        match self {
            Self::None => "",
            Self::AtLeast(aim) if value >= aim => "yes",
            Self::AtMost(aim) if value <= aim => "yes",
            _ => "no",
        }
    }
}

/// One side's values against the other's, pair by pair.
pub(crate) struct Ratio {
    pub(crate) name: String,
    pub(crate) ratio: Spread,
    pub(crate) aim: Aim,
    unit: &'static str,
    sides: [(String, Spread); 2],
}

struct Fact {
    name: String,
    value: f64,
    unit: &'static str,
    aim: Aim,
}

/// The results of one bench.
pub struct Report {
    name: &'static str,
    title: &'static str,
    plan: Plan,
    settings: Vec<(String, String)>,
    ratios: Vec<Ratio>,
    facts: Vec<Fact>,
}

impl Report {
    /// Prints where it runs.
    pub fn new(name: &'static str, title: &'static str, plan: Plan) -> Self {
        let mut settings = machine::facts();
        settings.push(("rounds".to_owned(), format!("{} of {:?}", plan.rounds, plan.time)));
        println!("# {title}\n");
        for (name, value) in &settings {
            println!("{name}: {value}");
        }
        Self { name, title, plan, settings, ratios: Vec::new(), facts: Vec::new() }
    }

    /// Says under which settings the server runs.
    pub async fn server(&mut self, pool: &PgPool) {
        for (name, value) in machine::settings(pool).await {
            self.setting(&name, &value);
        }
    }

    /// Something else that bears on the figures.
    pub fn setting(&mut self, name: &str, value: &str) {
        println!("{name}: {value}");
        self.settings.push((name.to_owned(), value.to_owned()));
    }

    /// A side and what it is held against: the values of the same rounds.
    pub fn ratio(
        &mut self,
        name: impl Into<String>,
        unit: &'static str,
        side: (&str, &[f64]),
        base: (&str, &[f64]),
        aim: Aim,
    ) {
        assert_eq!(side.1.len(), base.1.len(), "BUG: rounds without a counterpart");
        let ratios: Vec<f64> = side.1.iter().zip(base.1).map(|(side, base)| side / base).collect();
        let named = |(name, values): (&str, &[f64])| (name.to_owned(), Spread::of(values));
        let ratio = Spread::of(&ratios);
        let ratio = Ratio { name: name.into(), ratio, aim, unit, sides: [named(side), named(base)] };
        println!(
            "  {}: {:.3} ({} against {} {unit})",
            ratio.name,
            ratio.ratio.median,
            short(ratio.sides[0].1.median),
            short(ratio.sides[1].1.median)
        );
        self.ratios.push(ratio);
    }

    /// All that rounds of requests say of a side and what it is held against. The aim is the
    /// throughput's.
    pub fn rounds(&mut self, name: &str, side: (&str, &[Round]), base: (&str, &[Round]), aim: Aim) {
        self.compare(format!("{name}: throughput"), "requests/s", Round::rate, side, base, aim);
        self.compare(format!("{name}: p50"), "µs", Round::p50, side, base, Aim::None);
        self.compare(format!("{name}: p99"), "µs", Round::p99, side, base, Aim::None);
        self.processor(name, side, base);
    }

    /// What rounds of requests say of a step between two sides.
    pub fn step(&mut self, name: &str, side: (&str, &[Round]), base: (&str, &[Round])) {
        self.compare(format!("{name}: throughput"), "requests/s", Round::rate, side, base, Aim::None);
        self.processor(name, side, base);
    }

    fn processor(&mut self, name: &str, side: (&str, &[Round]), base: (&str, &[Round])) {
        let own = format!("{name}: processor, service and clients");
        self.compare(own, "µs", Round::own_cpu, side, base, Aim::None);
        self.compare(format!("{name}: processor, database"), "µs", Round::server_cpu, side, base, Aim::None);
    }

    fn compare(
        &mut self,
        name: String,
        unit: &'static str,
        value: fn(&Round) -> f64,
        (side, rounds): (&str, &[Round]),
        (base, bases): (&str, &[Round]),
        aim: Aim,
    ) {
        let values = |rounds: &[Round]| rounds.iter().map(value).collect::<Vec<_>>();
        let (rounds, bases) = (values(rounds), values(bases));
        // Where the system does not tell processor time, or a side does not use the database.
        if rounds.iter().chain(&bases).all(|value| value.is_finite() && *value > 0.0) {
            self.ratio(name, unit, (side, &rounds), (base, &bases), aim);
        }
    }

    /// A figure that is not a ratio.
    pub fn fact(&mut self, name: impl Into<String>, unit: &'static str, value: f64, aim: Aim) {
        let fact = Fact { name: name.into(), value, unit, aim };
        println!("  {}: {} {unit}", fact.name, short(value));
        self.facts.push(fact);
    }

    /// Prints the table, and keeps the results of a whole run.
    pub fn finish(self) {
        println!("\n{}", self.table());
        if self.plan.is_trial || self.plan.rounds < ENOUGH {
            println!("Not kept: {} rounds are too few.", self.plan.rounds);
            return;
        }
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("benches/").join("results");
        let json = serde_json::to_string_pretty(&self.json()).expect("JSON");
        let written = fs::create_dir_all(&directory)
            .and_then(|()| fs::write(directory.join(self.name).with_extension("json"), json + "\n"))
            .and_then(|()| {
                let plot = plot::svg(self.title, &self.ratios);
                fs::write(directory.join(self.name).with_extension("svg"), plot)
            });
        written.unwrap_or_else(|error| panic!("cannot keep the results in {}: {error}", directory.display()));
        println!("Kept in benches/results/{}.json and .svg", self.name);
    }

    fn table(&self) -> String {
        let mut table = String::new();
        if !self.ratios.is_empty() {
            table += "| | ratio | quartiles | extremes | aim | met | sides |\n";
            table += "| --- | ---: | ---: | ---: | ---: | --- | --- |\n";
        }
        for Ratio { name, ratio, aim, unit, sides } in &self.ratios {
            let [(side, values), (base, bases)] = sides;
            table += &format!(
                "| {name} | {:.3} | {:.3}–{:.3} | {:.3}–{:.3} | {} | {} | {side} {}, {base} {} {unit} |\n",
                ratio.median,
                ratio.lower,
                ratio.upper,
                ratio.least,
                ratio.most,
                aim.words(),
                aim.is_met(ratio.median),
                short(values.median),
                short(bases.median),
            );
        }
        if !self.facts.is_empty() {
            table += "\n| | | aim | met |\n| --- | ---: | ---: | --- |\n";
        }
        for Fact { name, value, unit, aim } in &self.facts {
            table += &format!(
                "| {name} | {} {unit} | {} | {} |\n",
                short(*value),
                aim.words(),
                aim.is_met(*value)
            );
        }
        table
    }

    fn json(&self) -> Value {
        let spread = |s: &Spread| {
            json!({
                "median": s.median, "lower_quartile": s.lower, "upper_quartile": s.upper,
                "least": s.least, "most": s.most,
            })
        };
        let ratios = self.ratios.iter().map(|ratio| {
            let [(side, values), (base, bases)] = &ratio.sides;
            json!({
                "name": ratio.name,
                "ratio": spread(&ratio.ratio),
                "aim": ratio.aim.words(),
                "met": ratio.aim.is_met(ratio.ratio.median),
                "unit": ratio.unit,
                side: spread(values),
                base: spread(bases),
            })
        });
        let facts = self.facts.iter().map(|fact| {
            let met = fact.aim.is_met(fact.value);
            json!({ "name": fact.name, "value": fact.value, "unit": fact.unit,
                "aim": fact.aim.words(), "met": met })
        });
        let settings: Map<String, Value> =
            self.settings.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
        json!({
            "title": self.title,
            "settings": settings,
            "ratios": ratios.collect::<Vec<_>>(),
            "facts": facts.collect::<Vec<_>>(),
        })
    }
}

/// Three digits or more, as people write them.
fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Fewer rounds say little.
const ENOUGH: usize = 15;
