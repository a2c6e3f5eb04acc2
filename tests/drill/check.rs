//! What must be so when all is calm again.

use std::collections::HashMap;

use sqlx::PgPool;

use crate::intent::Intent;

/// The effects that are committed: which intent has which.
pub(crate) async fn effects(pool: &PgPool) -> HashMap<i64, Vec<i64>> {
    let rows: Vec<(i64, i64)> =
        sqlx::query_as("select intent, id from effect order by id").fetch_all(pool).await.unwrap();
    let mut effects: HashMap<i64, Vec<i64>> = HashMap::new();
    for (intent, id) in rows {
        effects.entry(intent).or_default().push(id);
    }
    effects
}

/// The promises that were broken to this intent.
pub(crate) fn violations(intent: &Intent, effects: &HashMap<i64, Vec<i64>>) -> Vec<String> {
    let ids = effects.get(&intent.number).map_or(&[][..], Vec::as_slice);
    let mut violations = Vec::new();
    let mut broken = |what: &str| violations.push(format!("{what}: {intent:?}, effects {ids:?}"));
    if ids.len() > 1 {
        broken("more than one effect");
    }
    if !intent.wrong.is_empty() {
        broken("an answer that nobody may get");
    }
    let Some(first) = intent.answers.first() else {
        if intent.refused && !ids.is_empty() {
            broken("an effect of what can only be refused");
        }
        return violations;
    };
    let same = |other: &&crate::client::Answer| {
        (other.status, &other.lines, &other.body) != (first.status, &first.lines, &first.body)
    };
    if intent.answers.iter().find(same).is_some() {
        broken("two answers to one key");
    }
    if intent.answers.iter().filter(|answer| !answer.replayed).count() > 1 {
        // Twice executed, or a response of the first execution sent twice.
        broken("two answers that are not a replay");
    }
    match (intent.refused, ids) {
        (true, []) => {}
        (true, _) => broken("refused, and done all the same"),
        (false, []) => broken("acknowledged, and lost"),
        (false, [id, ..]) => {
            if first.body.split(' ').next() != Some(&id.to_string()) {
                broken("the answer tells of another effect");
            }
        }
    }
    violations
}
