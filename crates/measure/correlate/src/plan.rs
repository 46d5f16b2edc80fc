//! Goes through the aligned requests in order and says where each value that differs comes from.

use std::collections::{BTreeSet, HashMap, HashSet};

use aho_corasick::BuildError;
use fathom_import::{
    har::RecordedStep,
    import_tree::{ExtractSource, ImportPiece, ImportText, ImportedRequest, TextCoding},
};
use fathom_scenario::execution::is_secret;
use jiff::Timestamp;

use crate::{
    alignment::AlignedSteps,
    answer::answers,
    chunk::{Chunk, ChunkPart},
    compare::{ComparedValue, Part, Place, compare},
    deliveries::{Deliveries, Delivery},
    extract::Extractor,
    generated::{generator, is_token},
    names::UniqueNames,
    search::{Wanted, is_short, name_before, searches},
    variant::before,
};

/// What becomes of the aligned requests.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// By aligned pair.
    pub(crate) requests: Vec<PlannedRequest>,
    pub(crate) takes: Vec<PlannedTake>,
    pub(crate) columns: Vec<TypedColumn>,
    /// The places in which values of answers are sent.
    pub(crate) n_uses: usize,
    pub(crate) n_generated: usize,
    pub(crate) n_unexplained: usize,
    /// Answers within redirects whose values are needed: the pair, and the exchange.
    pub(crate) splits: BTreeSet<(usize, usize)>,
}

#[derive(Debug)]
pub(crate) struct PlannedRequest {
    pub(crate) request: ImportedRequest,
    pub(crate) remarks: Vec<String>,
}

/// A value that is taken from an answer.
#[derive(Debug)]
pub(crate) struct PlannedTake {
    pub(crate) name: String,
    /// The aligned pair whose answer has it.
    pub(crate) pair: usize,
    pub(crate) extractor: Extractor,
    pub(crate) one: String,
    pub(crate) two: String,
    /// Where it is sent: the aligned pairs and the places.
    pub(crate) uses: Vec<(usize, Place)>,
}

/// What the user typed at a place.
#[derive(Debug)]
pub(crate) struct TypedColumn {
    pub(crate) name: String,
    pub(crate) one: String,
    pub(crate) two: String,
    pub(crate) is_secret: bool,
}

/// A pair of values; short ones only at places of one name.
type ValueKey = (String, String, String);

#[derive(Debug, Clone)]
enum Origin {
    Take(usize, Vec<TextCoding>),
    Column(usize),
}

struct Planner<'a> {
    deliveries: Deliveries<'a>,
    /// When the request of each pair began, in both recordings.
    begins: Vec<(Option<Timestamp>, Option<Timestamp>)>,
    known: HashMap<ValueKey, Origin>,
    /// Values that no answer explains, with the pair up to which was searched.
    failed: HashSet<(ValueKey, usize)>,
    names: UniqueNames,
    plan: Plan,
    /// The request that is being looked at.
    pair: usize,
    remarks: Vec<String>,
}

/// Plans all requests.
///
/// # Errors
/// The values are too many for one search.
pub(crate) fn plan(
    first: &[RecordedStep],
    second: &[RecordedStep],
    pairs: &[AlignedSteps],
) -> Result<Plan, BuildError> {
    let answers = answers(first, second, pairs);
    let begin = |steps: &[RecordedStep], at: usize| steps[at].exchanges[0].begin;
    let mut wanted = Wanted::default();
    let requests = |steps: &AlignedSteps| {
        (first[steps.first].exchanges[0].request.clone(), &second[steps.second].exchanges[0].request)
    };
    for steps in pairs {
        let (mut one, two) = requests(steps);
        compare(&mut one, two, &mut |value| {
            if value.one != value.two {
                Chunk::of(value.one, value.two).each(value.before, &mut |chunk, before| {
                    for search in searches(chunk, &value.place, before) {
                        wanted.add(search);
                    }
                });
            }
            None
        });
    }
    let mut planner = Planner {
        deliveries: Deliveries::new(wanted, &answers)?,
        begins: pairs.iter().map(|steps| (begin(first, steps.first), begin(second, steps.second))).collect(),
        known: HashMap::new(),
        failed: HashSet::new(),
        names: UniqueNames::default(),
        plan: Plan::default(),
        pair: 0,
        remarks: Vec::new(),
    };
    for (pair, steps) in pairs.iter().enumerate() {
        let (mut request, other) = requests(steps);
        planner.pair = pair;
        let alone = compare(&mut request, other, &mut |value| {
            if value.one != value.two {
                return planner.value(value);
            }
            if value.place.is_credential() && !value.one.is_empty() {
                let what = format!("{} is the same in both recordings: the scenario holds it as it is", value.place);
                planner.remarks.push(what);
            }
            None
        });
        let mut remarks = std::mem::take(&mut planner.remarks);
        remarks.extend(alone);
        planner.plan.requests.push(PlannedRequest { request, remarks });
    }
    Ok(planner.plan)
}

impl Planner<'_> {
    /// The text for a value that differs; `None` if it stays as it is.
    fn value(&mut self, value: &ComparedValue<'_>) -> Option<ImportText> {
        let chunk = Chunk::of(value.one, value.two);
        if let Some(text) = self.explained(&chunk, value, value.before) {
            return Some(text);
        }
        let piece = self.made_by_user(&chunk, value);
        if piece.is_none() {
            self.unexplained(&chunk, value, value.before);
        }
        piece.map(|piece| ImportText(vec![piece]))
    }

    /// A chunk as a whole, or by its parts if one of them at least is explained.
    fn explained(&mut self, chunk: &Chunk, value: &ComparedValue<'_>, before: &str) -> Option<ImportText> {
        // The segments of a path have a meaning each; the path as a whole is a link that may lead elsewhere.
        if value.place.is_url() {
            return self
                .explained_by_parts(chunk, value, before)
                .or_else(|| self.explained_whole(chunk, value, before));
        }
        self.explained_whole(chunk, value, before).or_else(|| self.explained_by_parts(chunk, value, before))
    }

    fn explained_whole(&mut self, chunk: &Chunk, value: &ComparedValue<'_>, before: &str) -> Option<ImportText> {
        self.origin(chunk, value, before).map(|piece| ImportText(vec![piece]))
    }

    fn explained_by_parts(&mut self, chunk: &Chunk, value: &ComparedValue<'_>, before: &str) -> Option<ImportText> {
        let mut texts = Vec::new();
        let mut before = before.to_owned();
        let n_uses = self.plan.n_uses;
        for part in &chunk.parts {
            match part {
                ChunkPart::Same(text) => before.push_str(text),
                ChunkPart::Differs(part) => {
                    texts.push(self.explained(part, value, &before));
                    before.push_str(&part.one);
                }
            }
        }
        let n_explained = texts.iter().flatten().count();
        // A text of which one word was typed before was typed as a whole.
        let is_typed = value.place.is_typed() && n_explained < texts.len() && self.plan.n_uses == n_uses;
        (n_explained > 0 && !is_typed).then(|| self.joined(chunk, value, texts))
    }

    /// The parts of a chunk, of which some are explained.
    fn joined(&mut self, chunk: &Chunk, value: &ComparedValue<'_>, texts: Vec<Option<ImportText>>) -> ImportText {
        let mut texts = texts.into_iter();
        let mut all = ImportText::default();
        for part in &chunk.parts {
            match part {
                ChunkPart::Same(text) => all.push_str(text),
                ChunkPart::Differs(part) => {
                    let text = texts.next().flatten();
                    let text = text.or_else(|| self.generated(part).map(|piece| ImportText(vec![piece])));
                    if text.is_none() {
                        self.unexplained(part, value, value.before);
                    }
                    all.append(text.unwrap_or_else(|| part.one.as_str().into()));
                }
            }
        }
        all
    }

    /// A value that is already known, or that an answer delivered.
    fn origin(&mut self, chunk: &Chunk, value: &ComparedValue<'_>, before: &str) -> Option<ImportPiece> {
        for coding in [None, Some(TextCoding::Url), Some(TextCoding::Form), Some(TextCoding::Base64)] {
            let values = self::before(&chunk.one, coding).zip(self::before(&chunk.two, coding));
            let known = values.and_then(|(one, two)| self.known.get(&key((&one, &two), &value.place, before)).cloned());
            if let Some(origin) = known {
                // Other rows of the data may have signs that a URL must not have.
                let is_typed = matches!(origin, Origin::Column(_)) && value.is_in_url();
                let coding = coding.or_else(|| is_typed.then_some(TextCoding::Url));
                return Some(self.piece(&origin, coding, &value.place));
            }
        }
        let key = key((&chunk.one, &chunk.two), &value.place, before);
        if self.failed.contains(&(key.clone(), self.pair)) {
            return None;
        }
        let searches = searches(chunk, &value.place, before);
        let Some(Delivery { pair, extractor }) = self.deliveries.seen(&searches, self.pair) else {
            // If only an answer that redirects has it, the redirect becomes a step.
            self.plan.splits.extend(self.deliveries.between(&searches, self.pair));
            self.failed.insert((key, self.pair));
            return None;
        };
        let codings = extractor.codings.clone();
        let take = self.take(pair, extractor, chunk, (value, before));
        let origin = Origin::Take(take, codings);
        let piece = self.piece(&origin, None, &value.place);
        self.known.insert(key, origin);
        Some(piece)
    }

    /// The take of an extractor: a new one, or one that another value needed already.
    fn take(
        &mut self,
        pair: usize,
        extractor: Extractor,
        chunk: &Chunk,
        (value, before): (&ComparedValue<'_>, &str),
    ) -> usize {
        let is_same = |take: &PlannedTake| {
            take.pair == pair && take.extractor.from == extractor.from && take.extractor.which == extractor.which
        };
        if let Some(idx) = self.plan.takes.iter().position(is_same) {
            return idx;
        }
        let name = self.names.unique(match value.place.part {
            _ if matches!(extractor.from, ExtractSource::Json(_)) && value.place.is_url() => &extractor.name,
            _ if value.place.is_url() => name_before(before).unwrap_or(&extractor.name),
            Part::Path | Part::Body => &extractor.name,
            Part::Query | Part::Header | Part::Field => &value.place.name,
            Part::Json => value.place.name.rsplit('.').next().unwrap_or_default(),
        });
        let (one, two) = (chunk.one.clone(), chunk.two.clone());
        self.plan.takes.push(PlannedTake { name, pair, extractor, one, two, uses: Vec::new() });
        self.plan.takes.len() - 1
    }

    fn piece(&mut self, origin: &Origin, sent: Option<TextCoding>, place: &Place) -> ImportPiece {
        let (name, codings) = match origin {
            Origin::Take(take, codings) => {
                self.plan.n_uses += 1;
                let take = &mut self.plan.takes[*take];
                take.uses.push((self.pair, place.clone()));
                (&take.name, codings.as_slice())
            }
            Origin::Column(column) => (&self.plan.columns[*column].name, &[][..]),
        };
        let piece = ImportPiece::Variable(name.clone());
        codings.iter().copied().chain(sent).fold(piece, |piece, coding| ImportPiece::Coded(Box::new(piece), coding))
    }

    /// A value that a person or a program at the client made.
    fn made_by_user(&mut self, chunk: &Chunk, value: &ComparedValue<'_>) -> Option<ImportPiece> {
        let name = &value.place.name;
        let is_password = value.place.is_password();
        let is_signed = is_secret(name) || [&chunk.one, &chunk.two].iter().all(|value| is_token(value));
        if !is_password && let Some(piece) = self.generated(chunk).filter(|_| !is_secret(name)) {
            return Some(piece);
        }
        if !value.place.is_typed() || is_signed && !is_password {
            return None;
        }
        // A browser encodes the text of a query like a form; some scripts encode it like a path, or in their own way.
        let codings: &[_] = if value.is_raw { &[Some(TextCoding::Form), Some(TextCoding::Url), None] } else { &[None] };
        let (coding, one, two) = codings.iter().find_map(|coding| {
            let (one, two) = self::before(&chunk.one, *coding).zip(self::before(&chunk.two, *coding))?;
            Some((*coding, one, two))
        })?;
        let column = self.plan.columns.len();
        let key = key((&one, &two), &value.place, value.before);
        let name = self.names.unique(name.rsplit('.').next().unwrap_or(name));
        self.plan.columns.push(TypedColumn { name, one, two, is_secret: is_password });
        self.known.insert(key, Origin::Column(column));
        Some(self.piece(&Origin::Column(column), coding, &value.place))
    }

    fn generated(&mut self, chunk: &Chunk) -> Option<ImportPiece> {
        let (piece, _) = generator((&chunk.one, &chunk.two), self.begins[self.pair])?;
        self.plan.n_generated += 1;
        Some(piece)
    }

    fn unexplained(&mut self, chunk: &Chunk, value: &ComparedValue<'_>, before: &str) {
        let mut is_delivered = false;
        chunk.each(before, &mut |chunk, before| {
            for search in searches(chunk, &value.place, before) {
                is_delivered |= self.deliveries.is_in_text(&search, self.pair);
            }
        });
        let why = if is_delivered {
            "an answer has it, but nothing gets the right value out of both recordings"
        } else {
            "no answer delivered it"
        };
        self.plan.n_unexplained += 1;
        self.remarks.push(format!("{} differs, and {why}: it stays as in the first recording", value.place));
    }
}

fn key((one, two): (&str, &str), place: &Place, before: &str) -> ValueKey {
    let chunk = Chunk { one: one.to_owned(), two: two.to_owned(), parts: Vec::new() };
    let hint = match name_before(before).filter(|_| place.is_url()) {
        _ if !is_short(&chunk) => String::new(),
        Some(name) => name.to_owned(),
        None => place.to_string(),
    };
    (chunk.one, chunk.two, hint)
}
