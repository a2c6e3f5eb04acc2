//! What a test needs that not every machine has.

/// Says that it is absent, so that the test can be skipped; where `TOWER_IDEMPOTENCY_REQUIRE`, a list
/// separated by commas, has its name, that is a failure.
#[track_caller]
pub(crate) fn absent(name: &str, what: &str) {
    let required = std::env::var("TOWER_IDEMPOTENCY_REQUIRE").unwrap_or_default();
    let required = required.split(',').any(|required| required.trim() == name);
    assert!(!required, "{what}");
    eprintln!("SKIPPED: {what}");
}
