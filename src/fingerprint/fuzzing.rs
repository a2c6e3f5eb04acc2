use super::{json, multipart};

pub(crate) fn json(body: &[u8]) -> Option<Vec<u8>> {
    let mut normal = Vec::new();
    json::Outline::of(body, &[]).ok()?.write(&mut |bytes| normal.extend_from_slice(bytes));
    Some(normal)
}

pub(crate) fn multipart<'a>(body: &'a [u8], boundary: &'a str) -> Option<Vec<&'a [u8]>> {
    let mut all = Vec::new();
    multipart::Segments::of(body, boundary)?.for_each(|segment| all.push(segment));
    Some(all)
}
