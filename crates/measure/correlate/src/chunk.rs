//! Two values that differ, divided where both have the same separators.

/// From the outermost to the innermost. Whether a separator divides is decided by both values: it occurs equally often in them.
const SEPARATORS: [&str; 18] =
    [" ", ";", ",", "&", "?", "/", "=", ":", "|", "\"", "%2F", "%3D", "%26", "%3A", ".", "-", "_", "~"];
/// More parts are those of a document, not of a value.
const PARTS_MAX: usize = 64;

/// A pair of values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) one: String,
    pub(crate) two: String,
    /// Empty if the values cannot be divided.
    pub(crate) parts: Vec<ChunkPart>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChunkPart {
    Same(String),
    Differs(Chunk),
}

impl Chunk {
    pub(crate) fn of(one: &str, two: &str) -> Self {
        Self { one: one.to_owned(), two: two.to_owned(), parts: parts(one, two, &SEPARATORS) }
    }

    /// Passes this and all chunks within to `visit`, each with the text of the first value before it.
    pub(crate) fn each<'a>(&'a self, before: &str, visit: &mut dyn FnMut(&'a Self, &str)) {
        visit(self, before);
        let mut before = before.to_owned();
        for part in &self.parts {
            match part {
                ChunkPart::Same(text) => before.push_str(text),
                ChunkPart::Differs(chunk) => {
                    chunk.each(&before, visit);
                    before.push_str(&chunk.one);
                }
            }
        }
    }
}

fn parts(one: &str, two: &str, separators: &[&str]) -> Vec<ChunkPart> {
    for (idx, separator) in separators.iter().enumerate() {
        let n = one.matches(separator).count();
        if n == 0 || n >= PARTS_MAX || n != two.matches(separator).count() {
            continue;
        }
        let mut parts = Vec::new();
        for (place, (one, two)) in one.split(separator).zip(two.split(separator)).enumerate() {
            if place > 0 {
                push_same(&mut parts, separator);
            }
            if one == two {
                push_same(&mut parts, one);
            } else {
                let within = self::parts(one, two, &separators[idx + 1..]);
                parts.push(ChunkPart::Differs(Chunk { one: one.to_owned(), two: two.to_owned(), parts: within }));
            }
        }
        return parts;
    }
    without_common_ends(one, two)
}

/// The differing middle of values that begin or end alike.
fn without_common_ends(one: &str, two: &str) -> Vec<ChunkPart> {
    let begin: usize =
        one.chars().zip(two.chars()).take_while(|(one, two)| one == two).map(|(char, _)| char.len_utf8()).sum();
    let (rest_one, rest_two) = (&one[begin..], &two[begin..]);
    let ends = rest_one.chars().rev().zip(rest_two.chars().rev());
    let end: usize = ends.take_while(|(one, two)| one == two).map(|(char, _)| char.len_utf8()).sum();
    if begin + end == 0 {
        return Vec::new();
    }
    let (middle_one, tail) = rest_one.split_at(rest_one.len() - end);
    let middle_two = &rest_two[..rest_two.len() - end];
    let mut parts = Vec::new();
    push_same(&mut parts, &one[..begin]);
    parts.push(ChunkPart::Differs(Chunk { one: middle_one.to_owned(), two: middle_two.to_owned(), parts: Vec::new() }));
    push_same(&mut parts, tail);
    parts
}

fn push_same(parts: &mut Vec<ChunkPart>, text: &str) {
    match parts.last_mut() {
        _ if text.is_empty() => {}
        Some(ChunkPart::Same(before)) => before.push_str(text),
        _ => parts.push(ChunkPart::Same(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(chunk: &Chunk) -> String {
        if chunk.parts.is_empty() {
            return format!("<{}|{}>", chunk.one, chunk.two);
        }
        let part = |part: &ChunkPart| match part {
            ChunkPart::Same(text) => text.clone(),
            ChunkPart::Differs(chunk) => format!("({})", written(chunk)),
        };
        chunk.parts.iter().map(part).collect()
    }

    #[test]
    fn values_divide_where_both_have_the_same_separators() {
        let cases = [
            ("Bearer abc", "Bearer xyz", "Bearer (<abc|xyz>)"),
            ("id=a1;sig=b2", "id=c3;sig=d4", "(id=(<a1|c3>));(sig=(<b2|d4>))"),
            ("/orders/17/edit?t=ab", "/orders/23/edit?t=cd", "(/orders/(<17|23>)/edit)?(t=(<ab|cd>))"),
            ("abc", "xyz", "<abc|xyz>"),
            ("v1abc", "v1xyz", "v1(<abc|xyz>)"),
            ("a b", "c", "<a b|c>"),
            ("abc==", "xyz==", "(<abc|xyz>)=="),
            ("", "x", "<|x>"),
            ("äb", "äc", "ä(<b|c>)"),
            ("aa", "a", "a(<a|>)"),
        ];
        for (one, two, expected) in cases {
            assert_eq!(written(&Chunk::of(one, two)), expected, "{one} {two}");
        }
    }

    #[test]
    fn each_chunk_is_told_with_the_text_before_it() {
        let chunk = Chunk::of("/orders/17/items/4", "/orders/23/items/5");
        let mut all = Vec::new();
        chunk.each("GET ", &mut |chunk, before| all.push(format!("{before}<{}>", chunk.one)));
        assert_eq!(all, ["GET </orders/17/items/4>", "GET /orders/<17>", "GET /orders/17/items/<4>"]);
    }
}
