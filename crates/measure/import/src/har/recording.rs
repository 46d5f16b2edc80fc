//! A recording: the steps of a user with the answers that were recorded, before it becomes a tree.

use std::collections::HashSet;

use super::{
    super::{
        Error, RecordingFilter,
        import_tree::{CookieHandling, ImportAction, ImportNote, ImportTree, ImportedUser, ThinkTime},
    },
    archive::{HarArchive, HarPage},
    reader::{HarReader, TimedEntry},
    step::RecordedStep,
};

/// What one user did, in order.
#[derive(Debug)]
pub struct Recording {
    pub steps: Vec<RecordedStep>,
    pages: Vec<HarPage>,
    cookies: CookieHandling,
    /// Whether the recorder did not verify the certificates of servers.
    insecure: bool,
    /// The parts left out after the last step.
    left_out: Vec<ImportNote>,
}

impl Recording {
    /// Reads one archive.
    ///
    /// # Errors
    /// The text is not a HAR.
    pub fn read(text: &str, filter: &RecordingFilter) -> Result<Self, Error> {
        let archive: HarArchive = serde_json::from_str(text.trim_start_matches('\u{feff}')).map_err(Error::Har)?;
        let mut entries: Vec<TimedEntry> =
            archive.log.entries.into_iter().enumerate().map(|(idx, entry)| TimedEntry::new(idx, entry)).collect();
        // Files are usually almost sorted. If times are missing, the order of the file is kept.
        if entries.iter().all(|entry| entry.begin.is_some()) {
            entries.sort_by_key(|entry| entry.begin);
        }
        let mut reader = HarReader::new(filter);
        reader.read(entries);
        let cookies = if reader.jar.is_empty() { CookieHandling::Ignored } else { CookieHandling::Kept };
        let left_out = reader.take_left_out();
        Ok(Self { steps: reader.steps, pages: archive.log.pages, cookies, insecure: archive.log.insecure, left_out })
    }

    /// Makes a redirect a step of its own: the exchanges of a step from this one on are no longer followed to.
    pub fn split(&mut self, step: usize, exchange: usize) {
        let Some(first) = self.steps.get_mut(step) else { return };
        if exchange == 0 || exchange >= first.exchanges.len() {
            return;
        }
        let exchanges = first.exchanges.split_off(exchange);
        let second = RecordedStep { exchanges, is_asset: first.is_asset, page: first.page.clone(), pause: None };
        self.steps.insert(step + 1, second);
    }

    /// One user that repeats the recording.
    #[must_use]
    pub fn into_tree(self) -> ImportTree {
        let mut acts = transactions(self.steps, &self.pages);
        acts.extend(self.left_out.into_iter().map(ImportAction::LeftOut));
        let Self { cookies, insecure, .. } = self;
        let user = ImportedUser { name: "recorded".to_owned(), cookies, insecure, acts, ..ImportedUser::default() };
        ImportTree { kinds: vec![user], ..ImportTree::default() }
    }
}

/// Groups consecutive requests of one page into a transaction.
fn transactions(steps: Vec<RecordedStep>, pages: &[HarPage]) -> Vec<ImportAction> {
    let known: HashSet<&str> = pages.iter().map(|page| page.id.as_str()).collect();
    let mut acts: Vec<ImportAction> = Vec::new();
    let mut open: Option<String> = None;
    for step in steps {
        let page = step.page.clone().filter(|id| known.contains(id.as_str()));
        let think = step.pause.map(|pause| ImportAction::Think(ThinkTime::Fixed(pause)));
        let request = ImportAction::Request(Box::new(step.into_request()));
        match (acts.last_mut(), &page) {
            (Some(ImportAction::Transaction { acts, .. }), Some(id)) if open.as_ref() == Some(id) => {
                acts.extend(think);
                acts.push(request);
            }
            (_, Some(id)) => {
                acts.extend(think);
                acts.push(ImportAction::Transaction { name: title(pages, id), acts: vec![request] });
            }
            (_, None) => {
                acts.extend(think);
                acts.push(request);
            }
        }
        open = page;
    }
    acts.into_iter().map(without_lone).collect()
}

/// A transaction of a single step would only say the same twice.
fn without_lone(act: ImportAction) -> ImportAction {
    match act {
        ImportAction::Transaction { mut acts, .. } if acts.len() == 1 => acts.remove(0),
        act => act,
    }
}

fn title(pages: &[HarPage], id: &str) -> String {
    let title = pages.iter().find(|page| page.id == id).map_or("", |page| page.title.trim());
    // Chromium uses the URL as the title of a page.
    let short = title.split_once("://").map(|(_, rest)| rest.find('/').map_or("/", |at| &rest[at..]));
    let name = short.unwrap_or(title);
    if name.is_empty() { id.to_owned() } else { name.to_owned() }
}
